"""Tests of uvloop's own suite that stock passes and gmploop is right not to: `module.Class.test`: reason."""

EXCLUSIONS: dict[str, str] = {}
