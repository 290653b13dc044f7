"""Programs that use oncelog as a reader of the documentation would."""
