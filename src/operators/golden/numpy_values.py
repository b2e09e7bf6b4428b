"""Golden values of the tests beside: what numpy says to formulas and reductions.

    python3 src/operators/golden/numpy_values.py

writes expression.tsv, reductions.tsv and quantiles.tsv. Made with numpy 2.4. A line: what is asked, "=" (equal bits wanted) or "~" (functions
whose last bits libraries disagree on), dtype, values (complex ones as two). Inputs are the lists below, in both languages.
"""
import pathlib

import numpy as np

HERE = pathlib.Path(__file__).parent
ARRAYS = {
    "i": np.array([-3, -1, 0, 1, 2, 5, 7, 11], np.int16),
    "u": np.array([0, 1, 2, 3, 5, 8, 13, 100], np.uint8),
    "l": np.array([-40, 3, 1, -9, 2, 1 << 40, -(1 << 40), 12], np.int64),
    "h": np.array([0.5, -1.5, 2.25, 0.1, -0.0, 3.0, 7.5, np.nan], np.float16),
    "f": np.array([0.1, -0.7, 1.5, 2.5, -3.5, 100.25, 1e-3, np.nan], np.float32),
    "d": np.array([0.1, 0.2, 0.9, 1.0, -2.0, 1e10, -1e-10, np.inf], np.float64),
    "z": np.array([1 + 2j, -3j, 0.5, -1, 2 - 1j, 3 + 4j, 0.1 + 0.3j, 1], np.complex64),
    "b": np.array([1, 0, 0, 1, 1, 1, 0, 1], bool),
}
NAMES = {n: getattr(np, n) for n in (
    "where minimum maximum arctan2 hypot abs sign floor ceil trunc round isnan isinf isfinite real imag conj angle sqrt exp "
    "expm1 log log2 log10 log1p sin cos tan arcsin arccos arctan sinh cosh tanh pi e nan inf").split()}
EXACT = """
i + 1|i * 2 - l|u + i|u + f|h + u|h * f|f * 0.1|f + d|i / 2|u / 3|l // 7|l % 7|l // -5|l % -5|d // 0.3|d % 0.3|d % -0.3|f // 0.5
i ** 2|f ** 2|d ** 2|2 ** u[:6]|-i|+f|abs(i)|abs(f)|i * 2.5|u * 2.5|b * f|b + u|f > 1|i <= u|u == 300|l < d|z == 1|z != z
(f > 0) & (i < 5)|b ^ (i > 0)|b \\| (u > 4)|~b|~i|~u|u & 12|i \\| 1|u ^ i|where(b, 1, 0)|where(i > 0, f, d)|where(f, u, i)|where(b, 1.5, 2)
minimum(f, 1)|maximum(i, u)|minimum(d, f)|sign(i)|sign(d)|floor(f)|ceil(f)|trunc(f)|round(f)|round(d)|isnan(f)|isfinite(d)|isinf(d)
real(z)|imag(z)|conj(z)|z + 1|z * 2|z - f|real(f)|imag(f)|-2 ** 2 + i|2 * 3 ** 2 * d|f - 1 - 2|f / 2 / 4|i + 2 * u - 1|(i + 2) * (u + 1 + i)
minimum(b, b)|b < ~b|1 - f|pi * d|f * (2 * pi)|i % 4 + 1|sqrt(abs(d))|sqrt(abs(f))|d ** 0.5|h / 3|where(isnan(f), 0, f)|1e3 * f|.5 * f|5. * f
""".replace("\\|", "\0").replace("\n", "|").split("|")
NEAR = """
exp(f)|exp(d / 1e10)|log(abs(d))|log2(abs(d))|log10(abs(l))|log1p(abs(f))|expm1(d / 1e10)|sin(f)|cos(d)|tan(f)|arcsin(f / 200)|arccos(f / 200)|arctan(d)
arctan2(f, i)|hypot(f, d)|sinh(f / 10)|cosh(f / 10)|tanh(f)|abs(d) ** 1.5|f ** 3|z * z|z / 2j|angle(z)|angle(f)|abs(z)|exp(1j * f)|z ** 2|sqrt(abs(l))
""".replace("\n", "|").split("|")


def values(x):
    x = np.ravel(x)
    if x.dtype.kind == "c":
        x = np.stack([x.real, x.imag], -1).ravel()
    return " ".join(repr(v) for v in (x.astype(np.float64) if x.dtype.kind == "f" else x.astype(np.int64)).tolist())


def line(what, how, x):
    x = np.asarray(x)
    return f"{what}\t{how}\t{x.dtype.name}\t{values(x)}\n"


def expressions():
    for how, formulas in (("=", EXACT), ("~", NEAR)):
        for formula in formulas:
            formula = formula.strip().replace("\0", "|")
            if formula and "[" not in formula:
                yield line(formula, how, eval(formula, dict(NAMES), dict(ARRAYS)))


def stacks():
    k = np.arange(4 * 5 * 6).reshape(4, 5, 6)
    x = {
        "int8": ((k * 37) % 251 - 125).astype(np.int8),
        "uint16": ((k * 7919) % 65521).astype(np.uint16),
        "int64": (k * 7919 % 1009 - 500) * (1 << 40),
        "float32": (((k * 37) % 101) / 8 - 6).astype(np.float32),
        "float64": ((k * 37) % 101) / 8 - 6,
        "bool": (k * 37) % 101 > 50,
    }
    holes = x["float32"].copy()
    holes[k % 11 == 3] = np.nan
    x["holes"] = holes
    return x


def by_axis():
    for name, a in stacks().items():
        for axis in (None, 0, 1, 2, (0, 2)):
            yield name, a, axis, "" if axis is None else f"axis = {list(axis) if isinstance(axis, tuple) else axis}"


def reductions():
    for name, a, axis, key in by_axis():
        # Sums of such eighths are exact in any order; quotients are not.
        for op in ("sum", "min", "max", "any", "all"):
            yield line(f"{op};{name};{key}", "=", getattr(np, op)(a, axis=axis))
        for op in ("mean", "var", "std"):
            yield line(f"{op};{name};{key}", "~", getattr(np, op)(a, axis=axis))
        yield line(f"var;{name};{key}; ddof = 1", "~", np.var(a, axis=axis, ddof=1))
        if not isinstance(axis, tuple):
            yield line(f"argmin;{name};{key}", "=", np.argmin(a, axis=axis))
            yield line(f"argmax;{name};{key}", "=", np.argmax(a, axis=axis))
        if name == "holes":
            more = f"{key}; ignore = nan"
            for op in ("sum", "min", "max"):
                yield line(f"{op};{name};{more}", "=", getattr(np, "nan" + op)(a, axis=axis))
            for op in ("mean", "std"):
                yield line(f"{op};{name};{more}", "~", getattr(np, "nan" + op)(a, axis=axis))
            yield line(f"count;{name};{more}", "=", np.sum(~np.isnan(a), axis=axis))
        if axis == (0, 2) and name not in ("bool", "int64"):
            edges = "bins = 7; range = [-5.5, 6.25]"
            counts, _ = np.histogram(a, bins=7, range=(-5.5, 6.25))
            yield line(f"histogram;{name};{edges}", "=", counts)


METHODS = ("linear lower higher midpoint nearest inverted_cdf averaged_inverted_cdf closest_observation "
           "interpolated_inverted_cdf hazen weibull median_unbiased normal_unbiased").split()


def quantiles():
    for name, a, axis, key in by_axis():
        if name == "bool":  # numpy interpolates between numbers only
            continue
        # In float64 throughout, rounded to the input's dtype at the end; numpy's differences of int8 overflow.
        wide = a.astype(np.float64 if a.dtype.kind == "f" else np.int64)
        for method in METHODS if axis in (None, (0, 2)) else ["linear"]:
            for q in (0.5, [0, 0.1, 1 / 3, 1, 0.4]):
                found = np.quantile(wide, q, axis=axis, method=method)
                found = found.astype(a.dtype) if found.dtype == wide.dtype else found
                yield line(f"quantile;{name};{key}; q = {q}; method = '{method}'", "=", found)
        if name == "holes":
            found = np.nanquantile(wide, [0.75, 0.2], axis=axis, keepdims=True).astype(a.dtype)
            yield line(f"quantile;{name};{key}; q = [0.75, 0.2]; ignore = nan; keepdims = true", "=", found)


if __name__ == "__main__":
    np.seterr(all="ignore")
    (HERE / "expression.tsv").write_text("".join(expressions()))
    (HERE / "reductions.tsv").write_text("".join(reductions()))
    (HERE / "quantiles.tsv").write_text("".join(quantiles()))
