// The gradient of a table whose rows were looked up: row t is the sum of dy over all places that
// had token t. `tokens` is sorted, and `places` says which row of dy each one came from. The sums
// are in float32 and in the order of places, so that every run gives the same bits.
//
// A block adds up kRows sorted rows. Runs of one token that lie inside of the block are complete
// and go to the table; the run at its beginning and the one at its end may go on in other blocks
// and are put aside:
//
//   sorted tokens  | 3 3 3 3 | 3 7 9 9 | 9 9 9 9 |
//   blocks              0         1         2
//   put aside        3          3   9     9          ("edges": two per block; the second is unused
//   to the table                  7                   if all of the block is one run)
//
// embedding_edges then adds up the edges of each token, in order.

#define kRows 32

extern "C" __global__ void embedding_rows(const T* dy, const i64* tokens, const i64* places,
                                          T* table, float* edges, i64 count, int width) {
  const i64 begin = blockIdx.x * (i64)kRows, end = begin + kRows < count ? begin + kRows : count;
  const i64 first = tokens[begin], last = tokens[end - 1];
  for (int column = (blockIdx.y * blockDim.x + threadIdx.x) * V; column < width;
       column += gridDim.y * blockDim.x * V) {
    float sum[V] = {};
    for (i64 i = begin; i < end; ++i) {
      const i64 token = tokens[i];
      const Pack<V> p = *(const Pack<V>*)(dy + places[i] * width + column);
#pragma unroll
      for (int k = 0; k < V; ++k) sum[k] += to_float(p.v[k]);
      if (i + 1 < end && tokens[i + 1] == token) continue;
      if (token == first || token == last) {
        float* to = edges + (blockIdx.x * 2 + (token == first ? 0 : 1)) * (i64)width + column;
#pragma unroll
        for (int k = 0; k < V; ++k) to[k] = sum[k];
      } else {
        Pack<V> o;
#pragma unroll
        for (int k = 0; k < V; ++k) put(o.v[k], sum[k]);
        *(Pack<V>*)(table + token * width + column) = o;
      }
#pragma unroll
      for (int k = 0; k < V; ++k) sum[k] = 0;
    }
  }
}

// Block b owns the tokens whose first edge is in block b of embedding_rows: its last token, and its
// first one unless that goes on from the block before.
extern "C" __global__ void embedding_edges(const i64* tokens, const float* edges, T* table,
                                           i64 count, int width) {
  const i64 b = blockIdx.x, blocks = (count + kRows - 1) / kRows;
  const i64 begin = b * kRows, end = begin + kRows < count ? begin + kRows : count;
  const i64 first = tokens[begin], last = tokens[end - 1];
  const bool owns_first = b == 0 || tokens[begin - 1] != first;
  for (int column = blockIdx.y * blockDim.x + threadIdx.x; column < width;
       column += gridDim.y * blockDim.x) {
    if (owns_first && first != last)
      put(table[first * width + column], edges[(b * 2) * (i64)width + column]);
    if (first == last && !owns_first) continue;
    float sum = edges[(b * 2 + (first == last ? 0 : 1)) * (i64)width + column];
    for (i64 next = b + 1; next < blocks && tokens[next * kRows] == last; ++next)
      sum += edges[(next * 2) * (i64)width + column];
    put(table[last * width + column], sum);
  }
}
