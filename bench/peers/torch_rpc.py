"""A parameter server as PyTorch users write one: a tensor of rows in a process of its own, torch.distributed.rpc.

    python3 bench/peers/torch_rpc.py ROWS ELEMS KEYS

A step pushes gradients of random rows and pulls those rows, by one rpc_sync. Prints a line when ready; then reads lines,
each a number of steps, does so many, and prints {"us": [...]}, with every result checked outside of the time.
"""
import json
import os
import socket
import sys
import time

import torch
import torch.distributed.rpc as rpc
import torch.multiprocessing as mp

table = None


def make(rows, elems):
    global table
    table = torch.zeros(rows, elems)


def push_pull(keys, gradient):
    table.index_add_(0, keys, gradient, alpha=-1)
    return table[keys]


def server_main(port):
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    rpc.init_rpc("server", rank=1, world_size=2)
    rpc.shutdown()


def main():
    rows, elems, count = map(int, sys.argv[1:])
    torch.set_num_threads(1)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = mp.get_context("spawn").Process(target=server_main, args=(port,), daemon=True)
    server.start()
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    rpc.init_rpc("worker", rank=0, world_size=2)
    rpc.rpc_sync("server", make, args=(rows, elems))
    times_pushed = torch.zeros(rows)
    ones = torch.ones(count, elems)
    print("ready", flush=True)
    for line in sys.stdin:
        took = []
        for _ in range(int(line)):
            keys = torch.randint(rows, (count * 2,)).unique()
            keys = keys[torch.randperm(len(keys))[:count]]
            begin = time.perf_counter()
            pulled = rpc.rpc_sync("server", push_pull, args=(keys, ones))
            took.append(round((time.perf_counter() - begin) * 1e6, 1))
            times_pushed[keys] += 1
            assert bool((pulled == -times_pushed[keys].unsqueeze(1)).all())
        print(json.dumps({"us": took}), flush=True)
    rpc.shutdown()


if __name__ == "__main__":
    main()
