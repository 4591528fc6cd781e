#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "trireme/core/dynamic_library.h"

namespace trireme::comm::nccl {

/// The files that may be NCCL, in the order in which they are tried: the one that
/// TRIREME_NCCL_LIBRARY names and no other, else the one that came with libtorch, else the
/// system's.
std::vector<std::string> library_candidates(const std::string& asked_for,
                                            const std::string& torch_folder);

/// "2.28.9" for 22809.
std::string version_text(int version);

/// NCCL, opened at run time: the functions that we call, and the numbers of its interface. No build
/// needs its header. Versions from 2.18 work; functions that came later are null in older ones.
struct Library {
  using Comm = void*;
  using Stream = void*;
  struct UniqueId {
    char bytes[128];
  };
  /// ncclConfig_t as 2.18 has it. Later versions take it: they read `size` and `version` first.
  struct Config {
    static constexpr int kUnset = INT32_MIN;
    std::size_t size = sizeof(Config);
    unsigned magic = 0xcafebeef;
    unsigned version = 21803;
    int blocking = 1;  ///< see Channel
    int cluster_size = kUnset;
    int min_blocks = kUnset;
    int max_blocks = kUnset;
    const char* net_name = nullptr;
    int split_share = kUnset;
  };
  static_assert(sizeof(Config) == 48);

  // Results.
  static constexpr int kSuccess = 0, kInProgress = 7;
  // Types.
  static constexpr int kUInt8 = 1, kInt32 = 2, kInt64 = 4, kFloat16 = 6, kFloat32 = 7, kFloat64 = 8,
                       kBFloat16 = 9;
  // Reductions.
  static constexpr int kSum = 0, kProduct = 1, kMax = 2, kMin = 3, kMean = 4;
  /// The color of a rank that takes part in a split but is in none of the new communicators.
  static constexpr int kNoColor = -1;

  static constexpr int kOldest = 21800;     ///< the oldest version that works
  static constexpr int kSharedGpu = 23000;  ///< since then several ranks may share a GPU
  static constexpr int kSplit = 21800, kMemory = 21900;

  /// Opens it at the first call. Throws Error that says what was tried and what to do.
  static const Library& get();
  explicit Library(const std::vector<std::string>& candidates);

  core::DynamicLibrary file;
  int version = 0;

  int (*get_version)(int*) = nullptr;
  const char* (*error_text)(int) = nullptr;
  const char* (*last_error)(Comm) = nullptr;
  int (*unique_id)(UniqueId*) = nullptr;
  int (*init)(Comm*, int size, UniqueId, int rank, Config*) = nullptr;
  int (*split)(Comm, int color, int key, Comm*, Config*) = nullptr;
  int (*state)(Comm, int*) = nullptr;
  int (*finalize)(Comm) = nullptr;
  int (*destroy)(Comm) = nullptr;
  int (*abort)(Comm) = nullptr;
  int (*group_start)() = nullptr;
  int (*group_end)() = nullptr;
  int (*all_reduce)(const void*, void*, std::size_t, int type, int reduce, Comm, Stream) = nullptr;
  int (*broadcast)(const void*, void*, std::size_t, int type, int root, Comm, Stream) = nullptr;
  int (*reduce)(const void*, void*, std::size_t, int type, int reduce, int root, Comm,
                Stream) = nullptr;
  int (*all_gather)(const void*, void*, std::size_t, int type, Comm, Stream) = nullptr;
  int (*reduce_scatter)(const void*, void*, std::size_t, int type, int reduce, Comm,
                        Stream) = nullptr;
  int (*send)(const void*, std::size_t, int type, int peer, Comm, Stream) = nullptr;
  int (*recv)(void*, std::size_t, int type, int peer, Comm, Stream) = nullptr;
  int (*allocate)(void**, std::size_t) = nullptr;                             ///< since 2.19
  int (*free)(void*) = nullptr;                                               ///< since 2.19
  int (*register_memory)(Comm, void*, std::size_t, void** handle) = nullptr;  ///< since 2.19
  int (*deregister)(Comm, void* handle) = nullptr;                            ///< since 2.19

  bool can_register() const;

  /// "NCCL: ncclAllReduce failed: unhandled cuda error (...)".
  std::string describe(const char* call, int result, Comm comm = nullptr) const;
  /// Throws CommError with that text unless the result is success or "in progress".
  void check(const char* call, int result, Comm comm = nullptr) const;
};

/// NCCL's version if it can be opened here and is new enough; 0 if not.
int usable_version();

}  // namespace trireme::comm::nccl
