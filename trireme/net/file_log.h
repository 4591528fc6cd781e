#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "trireme/net/handshake.h"
#include "trireme/net/socket.h"
#include "trireme/net/store_table.h"

namespace trireme::net {

/// The file behind a file store: a log that only grows, read and written under a lock.
///
///   header   "trireme store 1\n" | size: 4 | job length: 4 | job
///   record   mark: 1 (S set, E erase) | key length: 4 | value length: 4 | checksum: 4 | key |
///   value
///
/// Each process keeps the table that the records make and reads only what was added. The lock is
/// flock() on a descriptor of its own, so threads of one process exclude each other too.
class FileLog {
 public:
  /// Opens the file, or makes it. Throws ConfigError if it is not this job's.
  FileLog(std::string path, const Identity& me, Deadline deadline);

  enum class Lock { Shared, Exclusive };
  /// Holds the lock while it lives; the table is up to date then. One thread at a time.
  class Hold {
   public:
    Hold(Hold&& other) noexcept : log_(std::exchange(other.log_, nullptr)) {}
    ~Hold();
    /// What the records make; change it with set and erase alone.
    StoreTable& table();
    /// Appends a record of what the table holds for the key now.
    void save(const std::string& key);

   private:
    friend class FileLog;
    explicit Hold(FileLog& log) : log_(&log) {}
    FileLog* log_;
  };

  /// Nothing if another process has the lock now. Throws CommError on a damaged file.
  std::optional<Hold> try_lock(Lock lock);

  /// Removes the file, if the path still leads to it.
  void remove() const noexcept;

  const std::string& path() const { return path_; }

 private:
  enum class Locked { Yes, Busy };
  Locked lock_file(Lock lock);
  void unlock_file();
  void check_owner() const;
  void start_or_check_header(const Identity& me);
  void read_new_records();
  size_t apply(std::string_view bytes);
  void append(const std::string& record);
  std::string read_bytes(size_t from, size_t bytes) const;
  size_t file_bytes() const;
  [[noreturn]] void throw_damaged(size_t at_byte) const;

  std::string path_;
  Fd fd_;
  size_t header_bytes_ = 0;
  size_t read_bytes_ = 0;
  StoreTable table_;
};

}  // namespace trireme::net
