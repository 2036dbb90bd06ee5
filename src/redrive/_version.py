"""The version, alone in its file so that neither the build nor `redrive --version` imports anything else."""

__version__ = "0.1.0"
