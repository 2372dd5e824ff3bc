"""The public programs: what is changed in their copies, and the page of their losses."""

from __future__ import annotations

import json
import re
import runpy
import sys
from pathlib import Path

import pytest

from support.recorded import ROOT

sys.path.append(str(ROOT / "benchmarks"))
from published import CLONES, PROGRAMS, WAYS
from published.program import ANY, Program, code_of

RECORD = json.loads((ROOT / "docs" / "public-programs.json").read_text("utf-8"))

PRINTED = {
    "haiku-transformer": ("{'step': 995.0, 'loss': 2.5, 'steps_per_sec': 9.0}", 2.5),
    "haiku-rnn": ("{'step': 5, 'loss': 2.5, 'split': 'test'}", 2.5),
    "nanodo": ("step 599 train_loss 2.5", 2.5),
    "haiku-vae": ("'train', 'elbo': -71.5", 71.5),
    "flax-vae": ("Epoch 5 loss: 0.125", 0.125),
    "haiku-gan": ("Step 9: gen_loss = 0.875, disc_loss = 1.25", 1.25),
    "distrax-flow": ("STEP:     5; Validation loss: -23.5", -23.5),
    "equinox-diffusion": ("Step=1499 Loss=0.125", 0.125),
    "equinox-vit": ("Step: 9/1000, Loss: 2.5.", 2.5),
    "purejaxrl-ppo": ("global step=99, episodic return=21.0", 21.0),
    "numpyro-vae": ("Epoch 9: loss = 87.5 (0.25 s.)", 87.5),
    "diffrax-ode": ("Step: 9, Loss: 2.5e-05, Computation time: 0.125", 2.5e-5),
    "flax-lora": ("loss 0.875", 0.875),
}
"""For each program: a line that it prints, and the loss in it."""

each_program = pytest.mark.parametrize("name", PROGRAMS)


def originals(name: str) -> dict[str, str]:
    """Return files with the texts to change, in their order, and with the seed."""
    program = PROGRAMS[name]
    texts = {
        file: "\n".join(before.replace(ANY, "\nanything\n") for before in changes)
        for file, changes in program.changes.items()
    }
    given = "\n".join((*texts.values(), *program.arguments))
    if program.seed not in given:
        last = [*texts][-1]
        texts[last] += f"\n{program.seed}\n"
    return texts


@each_program
def test_a_copy_has_the_changes_and_the_seed_of_its_run(name: str) -> None:
    program = PROGRAMS[name]
    first, second = (dict(program.copies(originals(name), index)) for index in (0, 1))
    for file, changes in program.changes.items():
        assert all(after in first[file] for after in changes.values())
    arguments = [
        [program.reseeded(argument, index) for argument in program.arguments] for index in (0, 1)
    ]
    assert (first, arguments[0]) != (second, arguments[1])
    assert program.seed in "\n".join((*first.values(), *arguments[0]))
    assert program.seed not in "\n".join((*second.values(), *arguments[1]))
    assert 'import__("param_dtype")' in "".join(first.values())


@each_program
def test_a_copy_of_another_revision_is_refused(name: str) -> None:
    texts = originals(name)
    file, *_ = texts
    with pytest.raises(ValueError, match="check out the listed revision"):
        [*PROGRAMS[name].copies({**texts, file: "another text"}, 0)]
    with pytest.raises(ValueError, match="2 times, not once"):
        [*PROGRAMS[name].copies({**texts, file: 2 * texts[file]}, 0)]


@each_program
def test_a_printed_loss_is_found(name: str) -> None:
    line, loss = PRINTED[name]
    assert [float(found) for found in re.findall(PROGRAMS[name].loss, line)] == [loss]
    assert PROGRAMS[name].clone in CLONES


def test_a_loss_may_be_no_number() -> None:
    for loss in ("nan", "inf"):
        assert re.findall(PROGRAMS["nanodo"].loss, f"step 5 train_loss {loss}") == [loss]


def test_the_code_of_a_notebook_is_in_its_cells() -> None:
    cells = [
        {"cell_type": "code", "source": ["a = 1\n", "b = 2"]},
        {"cell_type": "markdown", "source": ["A title."]},
        {"cell_type": "code", "source": ["c = 3"]},
    ]
    notebook = json.dumps({"cells": cells})
    assert code_of("a.ipynb", notebook) == "a = 1\nb = 2\n\nc = 3"
    assert code_of("a.py", notebook) == notebook


def test_a_program_was_trained_in_each_way_with_as_many_seeds() -> None:
    for name, runs in RECORD["programs"].items():
        program = PROGRAMS[name]
        assert {way: len(runs[way]) for way in program.ways} == dict.fromkeys(
            program.ways, program.seeds
        )
        assert [*runs] == program.ways
    assert [*RECORD["programs"]] == [name for name in PROGRAMS if name in RECORD["programs"]]


def test_the_page_is_made_from_the_record() -> None:
    written = runpy.run_path(str(ROOT / "docs" / "write_public_programs.py"))
    page = (ROOT / "docs" / "public-programs.md").read_text("utf-8")
    assert written["page"](RECORD) == page, "python docs/write_public_programs.py"
    for folder, (repository, revision) in CLONES.items():
        assert f"{repository}/blob/{revision}" in page or folder not in {
            PROGRAMS[name].clone for name in RECORD["programs"]
        }


def test_the_page_says_how_far_a_program_ends_above_float32() -> None:
    written = runpy.run_path(str(ROOT / "docs" / "write_public_programs.py"))
    first, *_, last = WAYS
    lower = {first: [2.0, 4.0], last: [2.2, 4.0]}
    assert written["excess"](PROGRAMS["nanodo"], lower, last) == pytest.approx(0.05)
    assert written["excess"](PROGRAMS["purejaxrl-ppo"], lower, last) == pytest.approx(-0.05)
    negative = {first: [-10.0], last: [-11.0]}
    assert written["excess"](PROGRAMS["distrax-flow"], negative, last) == pytest.approx(-0.1)
    assert written["percent"](0.0123) == "+1.23 %"
    assert (
        written["percent"](written["excess"](PROGRAMS["nanodo"], {**lower, last: [None, 1]}, last))
        == "NaN"
    )


def test_of_other_code_only_runs_with_the_import_are_trained_again(tmp_path: Path) -> None:
    script = runpy.run_path(str(ROOT / "benchmarks" / "public_programs.py"))
    program = PROGRAMS["haiku-rnn"]
    before = {"float32": [1.0], "stock": [2.0, 3.0], "with the import": [4.0, 5.0]}
    known = script["without_import"](before)
    trained = script["trained"]
    ran = []

    def loss_of(program: Program, clone: Path, way: str, index: int) -> float:
        del program, clone
        ran.append((index, way))
        return 6.0

    trained.__globals__["loss_of"] = loss_of
    now = trained(program, tmp_path, known)
    assert now == {"float32": [1.0, 6.0], "stock": [2.0, 3.0], "with the import": [6.0, 6.0]}
    assert ran == [(0, "with the import"), (1, "float32"), (1, "with the import")]
    assert known == {"float32": [1.0], "stock": [2.0, 3.0]}
