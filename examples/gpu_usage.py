"""Reads GPU utilisation and memory the way monitoring scripts do: `nvidia-smi` and a list of fields."""

import subprocess


def gpu_usage():
    """One dictionary a GPU: utilisation in percent, memory in MiB."""
    query = ["nvidia-smi", "--query-gpu=utilization.gpu,memory.used,memory.total", "--format=csv,nounits,noheader"]
    output = subprocess.run(query, capture_output=True, text=True, check=True).stdout
    names = ("utilization", "memory_used", "memory_total")
    return [dict(zip(names, map(int, line.split(", ")))) for line in output.strip().splitlines()]


if __name__ == "__main__":
    for gpu in gpu_usage():
        print(gpu)
