"""Prints what TensorBoard's own reader finds in a folder: one JSON object, {tag: [[step, value], ...]}."""
import json
import sys

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

events = EventAccumulator(sys.argv[1], size_guidance={"scalars": 0, "tensors": 0})
events.Reload()
tags = events.Tags()
found = {tag: [[one.step, one.value] for one in events.Scalars(tag)] for tag in tags["scalars"]}
print(json.dumps(found))
