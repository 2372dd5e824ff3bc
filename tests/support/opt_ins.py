"""The opt-in patches of the catalogue, as ``OPTAX_DTYPEFIX_ENABLE`` takes them."""

from __future__ import annotations

from optax_dtypefix import patches

OPT_INS = ",".join(patch_id for patch_id in patches.IDS if patches.load(patch_id).opt_in)
