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
///   record   mark: 1 (S set, E erase) | key length: 4 | value length: 4 | checksum: 4 |
///            key | value
///
/// Each process keeps the table that the records make up and reads only what was added. The lock is
/// flock() on a separate descriptor, so threads of one process exclude each other too.
class FileLog {
 public:
  /// Opens or creates the file. Throws ConfigError if it does not belong to this job.
  FileLog(std::string path, const Identity& me, Deadline deadline);

  enum class LockKind { Shared, Exclusive };
  /// Holds the lock; meanwhile the table is up to date. One thread at a time.
  class LockGuard {
   public:
    LockGuard(LockGuard&& other) noexcept : log_(std::exchange(other.log_, nullptr)) {}
    ~LockGuard();
    /// The current table; change it with set and erase only.
    StoreTable& table();
    /// Appends a record with the key's current value.
    void save(const std::string& key);

   private:
    friend class FileLog;
    explicit LockGuard(FileLog& log) : log_(&log) {}
    FileLog* log_;
  };

  /// Returns nothing if another process has the lock. Throws CommError if the file is damaged.
  std::optional<LockGuard> try_lock(LockKind lock);

  /// Removes the file, if the path still leads to it.
  void remove() const noexcept;

  const std::string& path() const { return path_; }

 private:
  enum class LockResult { Yes, Busy };
  LockResult lock_file(LockKind lock);
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
