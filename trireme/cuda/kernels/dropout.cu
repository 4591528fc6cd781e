// The mask of dropout: 0 for an element that is dropped, `keep` for the others. Element e of a
// sample is decided by word e % 4 of Philox 4x32-10 of (key, sample, e / 4), as on the CPU, so that
// both draw the same mask.

__device__ inline void philox(unsigned long long key, unsigned long long high,
                              unsigned long long low, unsigned* c) {
  unsigned k0 = (unsigned)key, k1 = (unsigned)(key >> 32);
  c[0] = (unsigned)low;
  c[1] = (unsigned)(low >> 32);
  c[2] = (unsigned)high;
  c[3] = (unsigned)(high >> 32);
  for (int round = 0; round < 10; ++round) {
    const unsigned long long p0 = 0xD2511F53ull * c[0], p1 = 0xCD9E8D57ull * c[2];
    const unsigned a = (unsigned)(p1 >> 32) ^ c[1] ^ k0, b = (unsigned)p1,
                   d = (unsigned)(p0 >> 32) ^ c[3] ^ k1, e = (unsigned)p0;
    c[0] = a;
    c[1] = b;
    c[2] = d;
    c[3] = e;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
}

// mask [rows, runs, run]: run i of a row is the elements [first + i stride, + run) of its sample. A
// thread makes the elements that share one call of Philox.
extern "C" __global__ void dropout_mask(T* mask, const i64* samples, unsigned long long key,
                                        i64 rows, i64 runs, i64 run, i64 first, i64 stride,
                                        unsigned drop_below, float keep) {
  const i64 groups = run / 4 + 2;  // of four, that a run may touch
  const i64 all = rows * runs * groups;
  for (i64 at = blockIdx.x * (i64)blockDim.x + threadIdx.x; at < all;
       at += (i64)gridDim.x * blockDim.x) {
    const i64 row = at / (runs * groups), i = at / groups % runs;
    const i64 begin = first + i * stride, group = begin / 4 + at % groups;
    if (group * 4 >= begin + run) continue;
    unsigned words[4];
    philox(key, (unsigned long long)samples[row], (unsigned long long)group, words);
    T* to = mask + (row * runs + i) * run;
    for (int w = 0; w < 4; ++w) {
      const i64 element = group * 4 + w - begin;
      if (element >= 0 && element < run) put(to[element], words[w] < drop_below ? 0.f : keep);
    }
  }
}
