#include "trireme/net/file_log.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "trireme/core/error.h"
#include "trireme/net/bytes.h"
#include "trireme/net/retry.h"
#include "trireme/net/store.h"

namespace trireme::net {

namespace {

constexpr std::string_view kFileMagic = "trireme store 1\n";
constexpr size_t kRecordHeadBytes = 13;
constexpr size_t kMaxFileJobBytes = 4096;
constexpr size_t kReadBytes = 4 << 20;  // more than the longest record
static_assert(kReadBytes > kRecordHeadBytes + kMaxKeyBytes + kMaxValueBytes);

constexpr char kSet = 'S';
constexpr char kErase = 'E';

/// FNV-1a: finds damage by a disk or a stray writer. It does not stop an attacker; the file mode
/// does.
uint32_t checksum(char mark, std::string_view key, std::string_view value) {
  uint32_t sum = 2166136261u;
  const auto mix = [&](char byte) { sum = (sum ^ static_cast<uint8_t>(byte)) * 16777619u; };
  mix(mark);
  for (const char byte : key) mix(byte);
  for (const char byte : value) mix(byte);
  return sum;
}

std::string encode_header(const Identity& me) {
  std::string header(kFileMagic);
  put(header, static_cast<uint32_t>(me.size));
  put_text<uint32_t>(header, me.job);
  return header;
}

std::string encode_record(char mark, std::string_view key, std::string_view value) {
  std::string record(1, mark);
  put(record, static_cast<uint32_t>(key.size()));
  put(record, static_cast<uint32_t>(value.size()));
  put(record, checksum(mark, key, value));
  record += key;
  record += value;
  return record;
}

}  // namespace

FileLog::FileLog(std::string path, const Identity& me, Deadline deadline) : path_(std::move(path)) {
  core::check(me.job.size() <= kMaxFileJobBytes, "job id has {} bytes; it may have {}",
              me.job.size(), kMaxFileJobBytes);
  // No symbolic links: in /tmp anybody could have made one.
  fd_ = Fd(::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600));
  if (!fd_)
    throw ConfigError(
        fmt::format("cannot open the file store {}: {}; give a path in a folder that "
                    "exists and that you can write to",
                    path_, core::errno_text(errno)));
  check_owner();
  for (Backoff backoff(std::chrono::microseconds(50), std::chrono::milliseconds(2));;) {
    if (lock_file(LockKind::Exclusive) == LockResult::Yes) break;
    if (backoff.sleep(deadline) == Readiness::DeadlinePassed)
      throw TimeoutError(fmt::format("file store {}: it stays locked by another process", path_));
  }
  const LockGuard unlocks_at_the_end(*this);
  start_or_check_header(me);
}

FileLog::LockGuard::~LockGuard() {
  if (log_ != nullptr) log_->unlock_file();
}

StoreTable& FileLog::LockGuard::table() {
  return log_->table_;
}

void FileLog::LockGuard::save(const std::string& key) {
  const StoreTable::Value value = log_->table_.get(key);
  try {
    log_->append(value ? encode_record(kSet, key, *value) : encode_record(kErase, key, {}));
  } catch (const CommError&) {
    // The table is ahead of the file now; the next lock reads the file again.
    log_->table_ = {};
    log_->read_bytes_ = log_->header_bytes_;
    throw;
  }
}

FileLog::LockResult FileLog::lock_file(LockKind lock) {
  const int how = lock == LockKind::Shared ? LOCK_SH : LOCK_EX;
  for (;;) {
    if (::flock(fd_.get(), how | LOCK_NB) == 0) return LockResult::Yes;
    if (errno == EWOULDBLOCK) return LockResult::Busy;
    if (errno != EINTR)
      throw CommError(
          fmt::format("file store {}: cannot lock it: {}", path_, core::errno_text(errno)));
  }
}

void FileLog::unlock_file() {
  ::flock(fd_.get(), LOCK_UN);
}

std::optional<FileLog::LockGuard> FileLog::try_lock(LockKind lock) {
  if (lock_file(lock) == LockResult::Busy) return std::nullopt;
  LockGuard hold(*this);
  read_new_records();
  return hold;
}

void FileLog::remove() const noexcept {
  struct stat ours {
  }, there{};
  if (::fstat(fd_.get(), &ours) == 0 && ::lstat(path_.c_str(), &there) == 0 &&
      ours.st_ino == there.st_ino && ours.st_dev == there.st_dev)
    ::unlink(path_.c_str());
}

void FileLog::check_owner() const {
  struct stat info {};
  if (::fstat(fd_.get(), &info) != 0 || !S_ISREG(info.st_mode))
    throw ConfigError(fmt::format("file store {}: it is not a file", path_));
  if (info.st_uid != ::geteuid() || (info.st_mode & 077) != 0)
    throw ConfigError(fmt::format(
        "file store {}: it has owner {} and mode {:04o}, it must be yours (user {}) and 0600; "
        "remove it or give another path",
        path_, info.st_uid, info.st_mode & 07777, ::geteuid()));
}

void FileLog::start_or_check_header(const Identity& me) {
  const std::string header = encode_header(me);
  header_bytes_ = header.size();
  if (file_bytes() == 0) return append(header);
  const std::string found =
      read_bytes(0, std::min(file_bytes(), kFileMagic.size() + 8 + kMaxFileJobBytes));
  try {
    ByteReader reader(found);
    if (reader.take(kFileMagic.size()) != kFileMagic) throw CommError("no magic");
    const int size = static_cast<int>(reader.number<uint32_t>());
    const std::string_view job = reader.text<uint32_t>();
    if (job != me.job)
      throw ConfigError(
          fmt::format("file store {} belongs to job '{}', but this is job '{}'; remove the "
                      "file if that job is over, or give another path",
                      path_, printable(job), me.job));
    if (size != me.size)
      throw ConfigError(
          fmt::format("file store {} belongs to a world of {} ranks, but this world has "
                      "{}; remove the file if that job is over",
                      path_, size, me.size));
    read_bytes_ = found.size() - reader.rest().size();
  } catch (const CommError&) {
    throw ConfigError(
        fmt::format("{} is not a file store of trireme (it begins with \"{}\"); "
                    "remove it or give another path",
                    path_, printable(found.substr(0, kFileMagic.size()))));
  }
  read_new_records();
}

void FileLog::read_new_records() {
  struct stat info {};
  if (::fstat(fd_.get(), &info) == 0 && info.st_nlink == 0)
    throw CommError(
        fmt::format("file store {} was removed while it was in use; start the job again", path_));
  const size_t end = file_bytes();
  if (end < read_bytes_) throw_damaged(end);
  while (read_bytes_ < end) {
    const size_t applied = apply(read_bytes(read_bytes_, std::min(end - read_bytes_, kReadBytes)));
    if (applied == 0) throw_damaged(read_bytes_);
    read_bytes_ += applied;
  }
}

/// Applies the complete records at the front; returns their length.
size_t FileLog::apply(std::string_view bytes) {
  size_t applied = 0;
  while (bytes.size() - applied >= kRecordHeadBytes) {
    ByteReader reader(bytes.substr(applied));
    const char mark = static_cast<char>(reader.number<uint8_t>());
    const auto key_bytes = reader.number<uint32_t>();
    const auto value_bytes = reader.number<uint32_t>();
    const auto sum = reader.number<uint32_t>();
    const bool is_sane = (mark == kSet || mark == kErase) && key_bytes <= kMaxKeyBytes &&
                         value_bytes <= kMaxValueBytes;
    if (!is_sane) throw_damaged(read_bytes_ + applied);
    if (reader.rest().size() < size_t{key_bytes} + value_bytes) break;
    const std::string key(reader.take(key_bytes));
    const std::string_view value = reader.take(value_bytes);
    if (checksum(mark, key, value) != sum) throw_damaged(read_bytes_ + applied);
    if (mark == kSet)
      table_.set(key, std::string(value));
    else
      table_.erase(key);
    applied += kRecordHeadBytes + key_bytes + value_bytes;
  }
  return applied;
}

void FileLog::append(const std::string& record) {
  const size_t end = file_bytes();
  for (size_t written = 0; written < record.size();) {
    const ssize_t bytes = ::pwrite(fd_.get(), record.data() + written, record.size() - written,
                                   static_cast<off_t>(end + written));
    if (bytes > 0) {
      written += static_cast<size_t>(bytes);
    } else if (bytes == 0 || errno != EINTR) {
      const int why = bytes == 0 ? ENOSPC : errno;
      // Half a record would make the file unreadable for all.
      [[maybe_unused]] const int cut = ::ftruncate(fd_.get(), static_cast<off_t>(end));
      throw CommError(fmt::format("file store {}: cannot write {} bytes: {}", path_, record.size(),
                                  core::errno_text(why)));
    }
  }
  read_bytes_ = end + record.size();
}

std::string FileLog::read_bytes(size_t from, size_t bytes) const {
  std::string text(bytes, '\0');
  for (size_t read = 0; read < bytes;) {
    const ssize_t got =
        ::pread(fd_.get(), text.data() + read, bytes - read, static_cast<off_t>(from + read));
    if (got > 0) {
      read += static_cast<size_t>(got);
    } else if (got == 0) {
      throw_damaged(from + read);
    } else if (errno != EINTR) {
      throw CommError(
          fmt::format("file store {}: cannot read it: {}", path_, core::errno_text(errno)));
    }
  }
  return text;
}

size_t FileLog::file_bytes() const {
  struct stat info {};
  if (::fstat(fd_.get(), &info) != 0)
    throw CommError(fmt::format("file store {}: {}", path_, core::errno_text(errno)));
  return static_cast<size_t>(info.st_size);
}

void FileLog::throw_damaged(size_t at_byte) const {
  throw CommError(
      fmt::format("file store {} is damaged at byte {}: a rank died while it wrote, or "
                  "something else wrote there; remove the file and start the job again",
                  path_, at_byte));
}

}  // namespace trireme::net
