#include "trireme/cuda/disk_cache.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "trireme/core/env.h"
#include "trireme/core/error.h"
#include "trireme/core/hash.h"

namespace trireme::cuda {

namespace {

namespace fs = std::filesystem;

fs::path folder() {
  if (const auto own = core::env("TRIREME_CACHE")) return *own;
  if (const auto shared = core::env("XDG_CACHE_HOME")) return fs::path(*shared) / "trireme";
  if (const auto home = core::env("HOME")) return fs::path(*home) / ".cache" / "trireme";
  return {};
}

}  // namespace

std::string DiskCache::path_of(std::string_view key) const {
  const fs::path base = folder();
  if (base.empty()) return {};
  return base / fmt::format("{}-{}", kind_, core::hash128_hex(key.data(), key.size()));
}

std::optional<std::string> DiskCache::find(std::string_view key) const {
  const std::string path = path_of(key);
  if (path.empty()) return std::nullopt;
  std::ifstream file(path, std::ios::binary);
  if (!file) return std::nullopt;
  std::string value{std::istreambuf_iterator<char>(file), {}};
  if (file.bad() || value.empty()) return std::nullopt;
  return value;
}

std::string DiskCache::keep(std::string_view key, std::string value) const {
  const std::string path = path_of(key);
  if (path.empty()) return value;
  std::error_code error;
  fs::create_directories(fs::path(path).parent_path(), error);
  // Written beside and linked: a reader sees all of it or nothing, and the first writer wins.
  const std::string beside = fmt::format("{}.{}", path, ::getpid());
  {
    std::ofstream file(beside, std::ios::binary);
    file.write(value.data(), static_cast<std::streamsize>(value.size()));
    if (!file.flush()) return value;
  }
  const bool first = ::link(beside.c_str(), path.c_str()) == 0;
  fs::remove(beside, error);
  if (first) return value;
  return find(key).value_or(std::move(value));
}

}  // namespace trireme::cuda
