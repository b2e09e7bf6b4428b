"""What xarray and ome-zarr-py write and read, for tests/coordinates/python.rs.

usage: python.py make|check|make-ome|check-ome DIR
"""
import pathlib
import sys
import warnings

import numpy as np

warnings.simplefilter("ignore")
part, root = sys.argv[1], pathlib.Path(sys.argv[2])


def dataset():
    import xarray as xr

    rng = np.random.default_rng(3)
    u = rng.normal(size=(3, 7, 9)).round(1)
    u[0, 0, 0] = np.nan
    return xr.Dataset(
        {"u": (("time", "y", "x"), u, {"units": "m s-1", "grid_mapping": "crs"})},
        coords={
            "time": np.array(["2000-01-01", "2000-01-03", "2000-01-04T12"], "datetime64[ns]"),
            "y": np.arange(7) * -0.5,
            "x": np.arange(9, dtype="f4"),
            "lat": (("y", "x"), rng.normal(size=(7, 9))),
            "name": ("time", np.array(["a", "", "ccc"], dtype=object)),
            "level": np.int32(500),
            "crs": ((), 0, {"crs_wkt": "w"}),
        },
        attrs={"Conventions": "CF-1.8", "title": "t"},
    )


if part == "make":
    for form in (2, 3):
        encoding = {"u": {"dtype": "i2", "scale_factor": 0.1, "add_offset": 1.0, "_FillValue": -999, "chunks": (1, 4, 5)}}
        dataset().to_zarr(root / f"in{form}.zarr", zarr_format=form, encoding=encoding, consolidated=form == 2)
elif part == "check":
    import xarray as xr

    for form in (2, 3):
        source = xr.open_zarr(root / f"in{form}.zarr", decode_coords="all").load()
        for name, want in {"whole": source, "part": source.isel(time=1, y=slice(None, None, -2), x=slice(2, 7))}.items():
            for to in (2, 3):
                path = root / f"{name}{form}{to}.zarr"
                got = xr.open_zarr(path, decode_coords="all").load()
                assert got.attrs.pop("halostream")["hash"], path
                # Formats have dtypes of their own for strings.
                got["name"], want["name"] = got["name"].astype(object), want["name"].astype(object)
                xr.testing.assert_identical(got, want)
                if form == 2:
                    xr.open_zarr(path, consolidated=True).close()
elif part == "make-ome":
    import zarr
    from ome_zarr.format import FormatV04, FormatV05
    from ome_zarr.writer import write_image

    image = np.arange(4 * 8 * 10, dtype="u2").reshape(4, 8, 10)
    for form, fmt in ((2, FormatV04()), (3, FormatV05())):
        group = zarr.open_group(root / f"ome{form}.zarr", mode="w", zarr_format=form)
        write_image(image, group, axes="zyx", fmt=fmt, storage_options={"chunks": (2, 3, 4)})
        if "s0" not in group:
            level = sorted(group.array_keys())[0]
            (root / f"ome{form}.zarr" / level).rename(root / f"ome{form}.zarr" / "s0")
            meta = group.attrs.asdict()
            for multiscale in meta.get("ome", meta)["multiscales"]:
                multiscale["datasets"][0]["path"] = "s0"
            group.attrs.put(meta)
elif part == "check-ome":
    from ome_zarr.io import parse_url
    from ome_zarr.reader import Reader

    want = np.arange(4 * 8 * 10, dtype="u2").reshape(4, 8, 10)[2:, ::2]
    for form in (2, 3):
        (node,) = Reader(parse_url(root / f"level{form}.zarr"))()
        assert len(node.data) == 1 and np.array_equal(np.asarray(node.data[0]), want), node.data
        scale, translation = node.metadata["coordinateTransformations"][0]
        assert scale["scale"] == [1.0, 2.0, 1.0] and translation["translation"] == [2.0, 0.0, 0.0], node.metadata
