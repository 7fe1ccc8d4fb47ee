"""Tests of uvloop's own suite that stock passes and gmploop is right not to: `module.Class.test`: reason."""

FOREIGN_TIMER = "sets a timer from another thread while one runs the loop, which is refused here also outside debug mode"

EXCLUSIONS: dict[str, str] = {
    "test_base.TestBaseAIO.test_check_thread": FOREIGN_TIMER,
    "test_base.TestBaseUV.test_check_thread": FOREIGN_TIMER,
}
