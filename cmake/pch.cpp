// Only here so that a precompiled header has a target to belong to.
