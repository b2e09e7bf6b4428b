"""The bands of a raster that GDAL reads (GeoTIFF, NetCDF, VRT, ..) as an input, (band, y, x). Needs rasterio.

    [input]
    command = ["python3", "examples/python/read_rasterio.py"]
    params = { path = "mosaic.vrt" }
    shape = [4, 20000, 30000]           # `python3 read_rasterio.py mosaic.vrt` prints these three lines
    dtype = "int16"
    chunks = [4, 512, 512]

Windows are read at full resolution; what the raster declares as missing comes as it is stored.
"""
import sys

import rasterio
from halostream_child import serve
from rasterio.windows import Window

files = {}


def region(path, block):
    """The window that is asked for, of the bands that are."""
    if path not in files:
        files[path] = rasterio.open(path)
    (first, last), (top, bottom), (left, right) = block["core"]
    window = Window.from_slices((top, bottom), (left, right))
    return files[path].read(list(range(first + 1, last + 1)), window=window)


if len(sys.argv) == 2:
    with rasterio.open(sys.argv[1]) as raster:
        rows, columns = raster.block_shapes[0]
        print(f'shape = [{raster.count}, {raster.height}, {raster.width}]\ndtype = "{raster.dtypes[0]}"')
        print(f"chunks = [{raster.count}, {rows}, {columns}]")
else:
    serve(region)
