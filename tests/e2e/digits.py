"""Writes scikit-learn's handwritten digits (1797 of 8 x 8) into a folder, in MNIST's form."""
import struct
import sys

import numpy
from sklearn.datasets import load_digits

folder = sys.argv[1]
digits = load_digits()
images = (digits.images * 255 / 16).round().astype("uint8")
labels = digits.target.astype("uint8")
order = numpy.random.RandomState(0).permutation(len(images))


def write(name, array):
    header = bytes([0, 0, 8, array.ndim]) + b"".join(struct.pack(">I", size) for size in array.shape)
    with open(f"{folder}/{name}", "wb") as file:
        file.write(header + array.tobytes())


for part, which in (("train", order[:1500]), ("t10k", order[1500:])):
    write(f"{part}-images-idx3-ubyte", images[which])
    write(f"{part}-labels-idx1-ubyte", labels[which])
