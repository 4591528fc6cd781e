#pragma once

#include <cstdint>

namespace trireme::nn {

/// The inner loops of batch norm on the CPU, for float and double. One source is compiled for
/// several kinds of CPU, and the best that this one supports is picked at run time.
///
/// Elements of a channel lie in planes, or side by side with those of the other channels:
///
///   plane    x x x x x x              one channel, one sample: `count` elements
///   rows     a b c d | a b c d | ..   pixels of all channels: `count` rows of `channels` elements
template <class T>
struct BatchNormLoops {
  /// What is done to each element, per channel: y = (x - mean) scale + bias.
  struct Affine {
    const T *mean, *scale, *bias;
  };
  /// dx = (g - offset - (x - mean) slope) scale.
  struct Slope {
    const T *mean, *scale, *offset, *slope;
  };
  /// The elements of a plane or of rows. `residual` may be null; so may `y` in backward: then
  /// gradients pass, and otherwise only those where y > 0.
  struct Forward {
    const T *x, *residual;
    T* y;
    int64_t count, channels;
    bool relu;
  };
  struct Backward {
    const T *x, *dy, *y;
    T* out;  ///< of `sums`: the gradients that pass, or null; of `input`: dx
    int64_t count, channels;
  };

  // Of one plane; the pointers of Affine and Slope are those of its channel.
  void (*plane_moments)(const T* x, int64_t count, double* mean, double* squares);
  void (*plane_forward)(const Forward& of, const Affine& by);
  void (*plane_sums)(const Backward& of, const T* mean, double* sum, double* product);
  void (*plane_input)(const Backward& of, const Slope& by);

  // Of rows: the results are one number per channel.
  void (*row_moments)(const T* x, int64_t count, int64_t channels, T* mean, T* squares);
  void (*row_forward)(const Forward& of, const Affine& by);
  void (*row_sums)(const Backward& of, const T* mean, T* sum, T* product);
  void (*row_input)(const Backward& of, const Slope& by);
};

template <class T>
const BatchNormLoops<T>& batch_norm_loops();

}  // namespace trireme::nn
