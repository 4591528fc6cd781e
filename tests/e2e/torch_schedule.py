"""Exchanges pipeline schedules with torch.distributed.pipelining, both ways.

    python3 torch_schedule.py FOLDER

Writes PyTorch's own schedules to FOLDER/torch/NAME.RANKS.MICROS.STAGES.FORM.csv, where FORM is compute (the order of
work, with its idle steps) or comms (with transfers, unshards and reductions). Loads every FOLDER/ours/*.csv of such a
name as PyTorch loads one that it is to run, plays it where its simulator knows all acts, and writes it back to
FOLDER/back/. Fails if PyTorch refuses one, or has read another action than the cell says.
"""
import csv
import itertools
import sys
from pathlib import Path

from torch.distributed.pipelining import schedules
from torch.distributed.pipelining.schedules import _Action, _PipelineScheduleRuntime

MULTI = {
    "interleaved": (schedules.ScheduleInterleaved1F1B, (2, 3)),
    "looped-bfs": (schedules.ScheduleLoopedBFS, (1, 2, 3)),
    "zb-h1": (schedules.ScheduleInterleavedZeroBubble, (1,)),
    "interleaved-zb": (schedules.ScheduleInterleavedZeroBubble, (2, 3)),
    "zb-v": (schedules.ScheduleZBVZeroBubble, (2,)),
    "dualpipe-v": (schedules.ScheduleDualPipeV, (2,)),
}
SINGLE = {"gpipe": schedules.ScheduleGPipe, "1f1b": schedules.Schedule1F1B}
SIMULATED = ("F", "B", "I", "W", "SEND_F", "RECV_F", "SEND_B", "RECV_B")


class Stage:
    """What the schedules ask of a stage before anything runs."""

    def __init__(self, ranks, stages):
        self.group_size, self.group_rank, self.num_stages = ranks, 0, stages
        self.stage_index, self.is_first, self.is_last = 0, True, stages == 1
        self.submod = self.group = self.stage_index_to_group_rank = None
        self.has_backward = False


def write_theirs(folder):
    for name, cls in SINGLE.items():
        for ranks, micros in itertools.product((1, 2, 3, 4), (4, 7, 8)):
            order = cls(Stage(ranks, ranks), micros)._get_pipeline_order()
            with open(folder / f"{name}.{ranks}.{micros}.1.compute.csv", "w", newline="") as file:
                csv.writer(file).writerows(order[rank] for rank in range(ranks))
    for name, (cls, many) in MULTI.items():
        for stages, ranks, micros in itertools.product(many, (1, 2, 3, 4), (2, 3, 4, 6, 8, 9)):
            try:
                schedule = cls([Stage(ranks, ranks * stages) for _ in range(stages)], micros)
            except ValueError:  # a shape that it does not take
                continue
            for form in ("compute", "comms"):
                file = folder / f"{name}.{ranks}.{micros}.{stages}.{form}.csv"
                schedule._dump_csv(file, "compute_only" if form == "compute" else "compute_comms")


def read_ours(source, target):
    for file in sorted(source.glob("*.csv")):
        name, ranks, micros, stages, form, _ = file.name.split(".")
        ranks, micros, stages = int(ranks), int(micros), int(stages)
        form = "compute_only" if form == "compute" else "compute_comms"
        schedule = _PipelineScheduleRuntime([Stage(ranks, ranks * stages) for _ in range(stages)], micros)
        schedule._load_csv(file, format=form)
        order = schedule.pipeline_order if form == "compute_only" else schedule.pipeline_order_with_comms
        with open(file, newline="") as opened:
            for rank, cells in enumerate(csv.reader(opened)):
                assert [str(action) for action in order[rank]] == cells, f"{file.name}, rank {rank}"
                assert [_Action.from_str(cell) for cell in cells] == order[rank], f"{file.name}, rank {rank}"
        acts = {action.computation_type.value for program in order.values() for action in program}
        if form == "compute_comms" and acts <= set(SIMULATED):
            schedule._simulate()
        schedule._dump_csv(target / file.name, form)


def main():
    folder = Path(sys.argv[1])
    for name in ("torch", "back"):
        (folder / name).mkdir()
    write_theirs(folder / "torch")
    read_ours(folder / "ours", folder / "back")


main()
