#pragma once

#include <sys/mount.h>

#include <filesystem>
#include <string>

namespace trireme::test {

/// A disk of its own, where root may mount one; gone with this.
class SmallDisk {
 public:
  /// `size`: "900k"
  SmallDisk(std::string path, const std::string& size) : path_(std::move(path)) {
    std::filesystem::create_directory(path_);
    mounted_ = ::mount("none", path_.c_str(), "tmpfs", 0, ("size=" + size).c_str()) == 0;
  }
  ~SmallDisk() {
    if (mounted_) ::umount(path_.c_str());
  }
  SmallDisk(const SmallDisk&) = delete;
  SmallDisk& operator=(const SmallDisk&) = delete;

  bool available() const { return mounted_; }
  void make_read_only() const {
    ::mount("none", path_.c_str(), "tmpfs", MS_REMOUNT | MS_RDONLY, "");
  }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
  bool mounted_ = false;
};

}  // namespace trireme::test
