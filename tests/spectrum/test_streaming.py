import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fullrank.spectrum import Spectrum, StreamingSpectrum


def stream(batches):
    streaming = StreamingSpectrum()
    for batch in batches:
        streaming.update(batch)
    return streaming.compute()


@settings(deadline=None, max_examples=50)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=8), st.integers(1, 12))
def test_batches_of_any_sizes_give_the_spectrum_of_all_embeddings(sizes, D):
    rng = torch.Generator().manual_seed(sum(sizes))
    Z = torch.randn(sum(sizes), D, generator=rng, dtype=torch.float64) + 3
    streamed, expected = stream(Z.split(sizes)), Spectrum.from_embeddings(Z)
    assert streamed.n == expected.n
    for name, power in (("eigenvalues", 1), ("singular_values", 2)):
        values, known = (getattr(spectrum, name) ** power for spectrum in (streamed, expected))
        torch.testing.assert_close(values, known, rtol=0, atol=1e-12 * (1 + known[0].item()))


def test_rounding_to_bfloat16_does_not_count_as_rank():
    rng = torch.Generator().manual_seed(0)
    Z = (torch.randn(300, 5, generator=rng) @ torch.randn(5, 64, generator=rng)).bfloat16()
    for part in (Z, Z[:40]):
        assert (stream(part.split(11)).eigenvalues > 0).sum() == 5
