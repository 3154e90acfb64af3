"""How work gets from accepted to done. See docs/architecture.md and docs/states.md."""
