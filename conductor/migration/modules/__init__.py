"""Modules that move part of their work to another rank while a step runs. Needs torch."""
