"""Writes images of every form into a folder, and what Pillow makes of them: for pillow_test.cpp.

Each line of cases.txt:   FILE HEIGHT WIDTH CHANNELS   with FILE.raw, the pixels
                          FILE LEFT TOP WIDTH HEIGHT SIZE   with FILE-N.crop, the crop at SIZE x SIZE
"""
import random
import struct
import sys
import zlib

from PIL import Image

folder = sys.argv[1]
cases = open(folder + "/cases.txt", "w")
random.seed(5)


def picture(mode, width, height):
    def pixel(x, y):
        return (x * 255 // width, y * 255 // height, (x * 7 + y * 13) % 256)

    image = Image.new("RGB", (width, height))
    pixels = image.load()
    for y in range(height):
        for x in range(width):
            pixels[x, y] = pixel(x, y)
    return image.convert(mode)


def expect(name, image):
    if image.mode not in ("L", "RGB"):
        image = image.convert("RGB")
    with open(f"{folder}/{name}.raw", "wb") as file:
        file.write(image.tobytes())
    print(name, image.height, image.width, len(image.getbands()), file=cases)


def save(name, image, as_mode=None, **options):
    path = f"{folder}/{name}"
    image.save(path, **options)
    expect(name, Image.open(path).convert(as_mode) if as_mode else Image.open(path))


def interlaced_png(width, height, pixels):
    """Adam7: seven passes over the image, each with its own rows."""
    passes = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2))
    rows = b""
    for left, top, right, down in passes:
        for y in range(top, height, down):
            row = b"".join(bytes(pixels[x, y]) for x in range(left, width, right))
            rows += b"\0" + row if row else b""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 1)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


for width, height in ((37, 53), (64, 64), (1, 1), (200, 9)):
    size = f"{width}x{height}"
    colours, grey = picture("RGB", width, height), picture("L", width, height)
    for quality in (30, 75, 95):
        save(f"c{size}q{quality}.jpg", colours, quality=quality)
    save(f"full{size}.jpg", colours, quality=90, subsampling=0)
    save(f"progressive{size}.jpg", colours, progressive=True)
    save(f"grey{size}.jpg", grey, quality=80)
    save(f"inks{size}.jpg", colours.convert("CMYK"), "RGB", quality=90)
    save(f"c{size}.png", colours)
    save(f"grey{size}.png", grey)
    save(f"bit{size}.png", colours.convert("1"), "L")
    save(f"palette{size}.png", colours.quantize(12), "RGB")
    alpha = colours.copy()
    alpha.putalpha(grey)
    save(f"alpha{size}.png", alpha, "RGB")
    with open(f"{folder}/interlaced{size}.png", "wb") as file:
        file.write(interlaced_png(width, height, colours.load()))
    expect(f"interlaced{size}.png", colours)

for number in range(40):
    name = random.choice(("c37x53.png", "c64x64.png", "grey200x9.png"))
    image = Image.open(f"{folder}/{name}")
    left, top = random.uniform(0, image.width / 2), random.uniform(0, image.height / 2)
    width, height = random.uniform(2, image.width - left), random.uniform(2, image.height - top)
    size = random.choice((1, 5, 16, 40, 90))
    crop = image.resize((size, size), Image.BILINEAR, box=(left, top, left + width, top + height))
    with open(f"{folder}/{number}.crop", "wb") as file:
        file.write(crop.tobytes())
    print(name, left, top, width, height, size, file=cases)
