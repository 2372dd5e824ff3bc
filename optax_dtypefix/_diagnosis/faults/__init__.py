"""The reproducers of the faults that the patches declare: one file a patch."""
