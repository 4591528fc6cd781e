// Only here so that the precompiled header of torch has a target to belong to.
