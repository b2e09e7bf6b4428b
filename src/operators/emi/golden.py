"""The numbers in tests.rs: EMI, EVD and temporal coherence of two small coherence matrices by numpy, in double precision.

    python golden.py
"""
import numpy as np

rng = np.random.default_rng(5)
n = 5
upper = np.triu_indices(n, 1)


def coherence(z):
    s = z.T @ z.conj()
    d = np.sqrt(np.diag(s).real)
    pairs = (s / d[:, None] / d[None])[upper].astype(np.complex64)
    c = np.eye(n, dtype=complex)
    c[upper] = pairs
    c[upper[1], upper[0]] = pairs.conj()
    return pairs, c


def linked(matrix, column, ref):
    w, v = np.linalg.eigh((matrix + matrix.conj().T) / 2)
    u = v[:, column] * np.conj(v[ref, column])
    return u / np.abs(u), w[column]


def emi(c, ref):
    return linked(np.linalg.inv(np.abs(c)) * c, 0, ref)


def show(name, c, ref, result):
    phase, quality = result
    i, j = upper
    terms = c[i, j] / np.abs(c[i, j]) * np.conj(phase[i]) * phase[j]
    weight = np.maximum(0, (np.abs(c[i, j]) ** 2 - 1 / 3) / (1 - 1 / 3))
    print(name, np.angle(phase).tolist(), quality, "t", abs(terms.mean()), "weighted, 3 looks", abs((terms * weight).sum()) / weight.sum())


noise = lambda looks: rng.normal(size=(looks, n)) + 1j * rng.normal(size=(looks, n))
pairs, c = coherence((noise(40) @ (np.eye(n) + 0.8 * np.ones((n, n)))) * np.exp(1j * np.arange(n) * 0.7))
print("many looks", pairs.view(np.float32).tolist())
show("emi", c, 1, emi(c, 1))
show("beta 0.1", c, 1, emi(0.9 * c + 0.1 * np.eye(n), 1))
phase, value = linked(c, -1, 1)
show("evd", c, 1, (phase, value / n))
pairs, c = coherence(noise(3))
print("few looks, |C| indefinite", pairs.view(np.float32).tolist())
show("emi", c, 0, emi(c, 0))
e = np.linalg.eigvalsh(np.abs(c))
d, r = max(0, -e[0]), max(0, (e[-1] - 1e5 * e[0]) / (1e5 - 1))
beta = max(2 * d / (1 + 2 * d), r / (1 + r))
show("adaptive", c, 0, emi((1 - beta) * c + beta * np.eye(n), 0))
