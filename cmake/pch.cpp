// Empty: a precompiled header must belong to a target, and a target needs a source.
