"""What PyTorch users have on CPUs: torch.distributed's gloo, timed as bench/against_mpi.cpp times.

    python3 bench/peers/gloo.py RANKS BYTES [BYTES ...]

Starts so many ranks; with RANK, MASTER_ADDR and MASTER_PORT in the environment it is one of them.

One JSON line per size: the median over repetitions of the slowest rank, each on freshly written data
after a barrier, in microseconds.
"""
import json
import os
import socket
import statistics
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def rank_main(rank, ranks, address, port, sizes):
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR=address, MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=ranks)
    for size in sizes:
        data = torch.empty(max(1, size // 4))
        repeats = int(os.environ.get("REPEATS", 101 if size <= 1 << 16 else 31 if size <= 1 << 22 else 9))
        times = []
        for repeat in range(-min(3, repeats), repeats):
            data.fill_(rank + 1)
            dist.barrier()
            begin = time.perf_counter()
            dist.all_reduce(data)
            slowest = torch.tensor([time.perf_counter() - begin], dtype=torch.float64)
            dist.barrier()
            assert bool((data == ranks * (ranks + 1) / 2).all())
            dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
            if repeat >= 0:
                times.append(slowest.item())
        if rank == 0:
            print(json.dumps({"peer": "gloo", "ranks": ranks, "bytes": size, "us": round(statistics.median(times) * 1e6, 1)}), flush=True)
    dist.destroy_process_group()


def main():
    ranks, sizes = int(sys.argv[1]), [int(s) for s in sys.argv[2:]]
    if "RANK" in os.environ:
        return rank_main(int(os.environ["RANK"]), ranks, os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"], sizes)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        free_port = probe.getsockname()[1]
    mp.spawn(rank_main, args=(ranks, "127.0.0.1", free_port, sizes), nprocs=ranks)


if __name__ == "__main__":
    main()
