"""Each hazard of the engine (HAZARDS.md): shown without its guard, gone with it."""
