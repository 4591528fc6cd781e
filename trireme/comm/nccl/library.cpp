#include "trireme/comm/nccl/library.h"

#include <ATen/Context.h>

#include "trireme/core/env.h"
#include "trireme/core/error.h"

namespace trireme::comm::nccl {

std::vector<std::string> library_candidates(const std::string& asked_for,
                                            const std::string& torch_folder) {
  // A library that somebody asked for by name is not replaced by another one.
  if (!asked_for.empty()) return {asked_for};
  std::vector<std::string> candidates;
  if (!torch_folder.empty())
    candidates = {torch_folder + "/../../nvidia/nccl/lib/libnccl.so.2",
                  torch_folder + "/libnccl.so.2"};
  candidates.emplace_back("libnccl.so.2");
  return candidates;
}

std::string version_text(int version) {
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

const Library& Library::get() {
  static const Library library(library_candidates(
      core::env("TRIREME_NCCL_LIBRARY").value_or(""),
      core::folder_of_library(
          reinterpret_cast<const void*>(static_cast<at::Context& (*)()>(&at::globalContext)))));
  return library;
}

namespace {

core::DynamicLibrary open(const std::vector<std::string>& candidates) {
  try {
    // libtorch may have loaded another NCCL. The calls inside this one must not reach that one.
    return {"NCCL", candidates, core::DynamicLibrary::Symbols::OwnFirst};
  } catch (const Error& error) {
    throw Error(
        fmt::format("{}; set TRIREME_NCCL_LIBRARY to a libnccl.so.2 of 2.18 or later, or "
                    "TRIREME_BACKEND=shm or tcp to do without",
                    error.what()));
  }
}

}  // namespace

Library::Library(const std::vector<std::string>& candidates) : file(open(candidates)) {
  file.bind(get_version, "ncclGetVersion");
  get_version(&version);
  if (version < kOldest)
    throw Error(
        fmt::format("{} is NCCL {}, which is too old: 2.18 or later is needed; set "
                    "TRIREME_NCCL_LIBRARY",
                    file.path(), version_text(version)));
  file.bind(error_text, "ncclGetErrorString");
  file.bind(last_error, "ncclGetLastError");
  file.bind(unique_id, "ncclGetUniqueId");
  file.bind(init, "ncclCommInitRankConfig");
  file.bind(state, "ncclCommGetAsyncError");
  file.bind(finalize, "ncclCommFinalize");
  file.bind(destroy, "ncclCommDestroy");
  file.bind(abort, "ncclCommAbort");
  file.bind(group_start, "ncclGroupStart");
  file.bind(group_end, "ncclGroupEnd");
  file.bind(all_reduce, "ncclAllReduce");
  file.bind(broadcast, "ncclBroadcast");
  file.bind(reduce, "ncclReduce");
  file.bind(all_gather, "ncclAllGather");
  file.bind(reduce_scatter, "ncclReduceScatter");
  file.bind(send, "ncclSend");
  file.bind(recv, "ncclRecv");
  split = file.get_if<int(Comm, int, int, Comm*, Config*)>("ncclCommSplit");
  allocate = file.get_if<int(void**, std::size_t)>("ncclMemAlloc");
  free = file.get_if<int(void*)>("ncclMemFree");
  register_memory = file.get_if<int(Comm, void*, std::size_t, void**)>("ncclCommRegister");
  deregister = file.get_if<int(Comm, void*)>("ncclCommDeregister");
}

bool Library::can_register() const {
  return allocate != nullptr && free != nullptr && register_memory != nullptr &&
         deregister != nullptr;
}

std::string Library::describe(const char* call, int result, Comm comm) const {
  const char* more = last_error(comm);
  const std::string text =
      fmt::format("NCCL {}: {} failed: {}", version_text(version), call, error_text(result));
  return more == nullptr || *more == '\0' ? text : fmt::format("{} ({})", text, more);
}

void Library::check(const char* call, int result, Comm comm) const {
  if (result != kSuccess && result != kInProgress) throw CommError(describe(call, result, comm));
}

int usable_version() {
  try {
    return Library::get().version;
  } catch (const Error&) {
    return 0;
  }
}

}  // namespace trireme::comm::nccl
