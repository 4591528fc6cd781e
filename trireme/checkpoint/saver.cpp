#include "trireme/checkpoint/saver.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <ATen/ops/empty.h>

#include <algorithm>
#include <condition_variable>
#include <cstring>

#include "trireme/comm/texts.h"
#include "trireme/core/error.h"
#include "trireme/core/log.h"
#include "trireme/format/folder.h"
#include "trireme/format/index.h"
#include "trireme/format/parts.h"

namespace trireme::checkpoint {

namespace {

using namespace std::chrono_literals;

constexpr std::chrono::milliseconds kLastPatience = 10s;  // when this rank has failed already
constexpr int kSignsOfLife = 8;  // that a rank gives during the patience of rank 0
constexpr auto kLook = 5ms;
constexpr int64_t kMostFragment = int64_t{256} << 20;

std::string part_name(int rank) {
  return fmt::format("part-{:05}.safetensors", rank);
}
std::string fragment_name(int rank) {
  return fmt::format("part-{:05}.json", rank);
}

std::string alive_name(int rank) {
  return fmt::format("part-{:05}.alive", rank);
}

int64_t bytes_there(const std::string& path) {
  struct stat status {};
  return ::stat(path.c_str(), &status) == 0 ? status.st_size : -1;
}

/// Grows a file while this object lives, so that rank 0 sees that this rank is still writing, also
/// during a long fsync. Errors are ignored.
class SignOfLife {
 public:
  SignOfLife(std::string path, std::chrono::milliseconds every)
      : path_(std::move(path)),
        thread_([this, every](std::stop_token stop) { run(stop, every); }) {}
  ~SignOfLife() {
    thread_.request_stop();
    thread_.join();
    ::unlink(path_.c_str());
  }

 private:
  void run(std::stop_token stop, std::chrono::milliseconds every) {
    std::mutex mutex;
    std::condition_variable_any woken;
    std::unique_lock lock(mutex);
    while (!woken.wait_for(lock, stop, every, [&] { return stop.stop_requested(); })) {
      const int fd = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
      if (fd < 0) continue;
      (void)!::write(fd, ".", 1);
      ::close(fd);
    }
  }

  std::string path_;
  std::jthread thread_;
};

/// The note of a rank that could not write its part.
core::Json failure(const std::string& why) {
  core::Json note = core::Json::object();
  note["failed"] = why;
  return note;
}

/// Leaves a note for rank 0. The note appears complete or not at all; once it is there, rank 0 no
/// longer looks for signs of life.
void leave_note(const std::string& folder, int rank, const core::Json& note,
                std::optional<SignOfLife>& alive) {
  const std::string place = folder + "/" + fragment_name(rank);
  try {
    format::write_file(place + ".new", note.dump());
    alive.reset();
    if (::rename((place + ".new").c_str(), place.c_str()) != 0)
      throw CheckpointError(fmt::format("cannot rename {}: {}", place, core::errno_text(errno)));
  } catch (const CheckpointError&) {
    // The disk is full: an empty note needs no space, and means failure.
    alive.reset();
    ::unlink((folder + "/" + part_name(rank)).c_str());
    format::File::create(place).finish();
    if (!note.contains("failed")) throw;
  }
  if (note.contains("failed")) throw CheckpointError(note.at("failed").get<std::string>());
}

}  // namespace

/// A copy of a rank's share of the state.
struct Saver::Snapshot {
  int64_t step = 0;
  std::string folder;  ///< the step's, while it is being written
  std::vector<Item> items;
  core::Json extra;
};

Saver::Saver(std::string folder, const Mesh& mesh, int64_t keep, Options options)
    : folder_(std::move(folder)),
      group_(mesh.world()),
      coord_(mesh.coord()),
      degrees_(mesh.degrees()),
      keep_(keep),
      options_(std::move(options)) {}

Saver::~Saver() {
  writer_.request_stop();  // do not wait for the parts of ranks that are gone
}

void Saver::set_after_failure(std::string what) {
  wait();
  options_.after_failure = std::move(what);
}

void Saver::warn(int64_t step, const std::string& why, const std::string& then) const {
  core::Log(group_.rank(), "checkpoint")
      .warning(
          fmt::format("step {} is not saved: {}{}{}", step, why, then.empty() ? "" : "; ", then));
}

void Saver::save(int64_t step, const State& state) {
  if (writer_.joinable()) writer_.join();
  Snapshot copy{step, "", {}, state.extra};
  std::string answer;  // of rank 0: "+folder" or "-why not"
  if (group_.rank() == 0) {
    try {
      answer = "+" + format::begin(folder_, step);
    } catch (const std::exception& error) {
      answer = std::string("-") + error.what();
    }
  }
  answer = comm::broadcast_text(group_, answer, 0);
  {
    const std::lock_guard lock(mutex_);
    problem_.reset();
    if (answer[0] == '-') problem_ = answer.substr(1);
  }
  if (answer[0] == '-') {
    if (group_.rank() == 0) warn(step, answer.substr(1), options_.after_failure);
    return;
  }
  copy.folder = answer.substr(1);
  const at::NoGradGuard guard;
  for (Item& item : share(state.items, coord_, degrees_)) {
    at::Tensor own = at::empty(item.tensor.sizes(), item.tensor.options().device(at::kCPU));
    own.copy_(item.tensor);
    copy.items.push_back({std::move(item.piece), std::move(own)});
  }
  writer_ = std::jthread(
      [this, kept = std::move(copy)](std::stop_token stop) mutable { run(std::move(kept), stop); });
}

void Saver::run(Snapshot copy, std::stop_token stop) {
  // Training has priority over writing.
  ::setpriority(PRIO_PROCESS, static_cast<id_t>(::syscall(SYS_gettid)), 19);
  try {
    std::optional<SignOfLife> alive;
    alive.emplace(copy.folder + "/" + alive_name(group_.rank()), options_.patience / kSignsOfLife);
    const core::Json note = write_part(copy);
    copy.items.clear();
    if (group_.rank() != 0) return leave_note(copy.folder, group_.rank(), note, alive);
    alive.reset();
    join_parts(copy, note, stop);
  } catch (const std::exception& error) {
    const std::lock_guard lock(mutex_);
    problem_ = error.what();
    warn(copy.step, error.what(), stop.stop_requested() ? "" : options_.after_failure);
  }
}

/// Writes this rank's file. Returns a note of its contents, or of the reason why it failed.
core::Json Saver::write_part(Snapshot& copy) const {
  const std::string file = part_name(group_.rank());
  try {
    std::vector<format::PartItem> parts;
    for (const Item& item : copy.items)
      parts.push_back({item.piece,
                       std::string(dtype_name(item.tensor.scalar_type())),
                       {{static_cast<const std::byte*>(item.tensor.data_ptr()),
                         static_cast<std::size_t>(item.tensor.nbytes())}}});
    return format::write_part(copy.folder, file, copy.step, parts,
                              [&](std::size_t i) { copy.items[i].tensor.reset(); });
  } catch (const std::exception& error) {
    return failure(fmt::format("rank {}: {}", group_.rank(), error.what()));
  }
}

/// Rank 0: waits for the notes of all ranks, before any of their files is used or removed.
std::vector<core::Json> Saver::wait_for_notes(const Snapshot& copy, const core::Json& own,
                                              const std::stop_token& stop) const {
  using Clock = std::chrono::steady_clock;
  const auto patience =
      own.contains("failed") ? std::min(kLastPatience, options_.patience) : options_.patience;
  std::vector<core::Json> notes = {own};
  for (int rank = 1; rank < group_.size(); ++rank) {
    const std::string place = copy.folder + "/" + fragment_name(rank);
    int64_t bytes = -2;  // neither file is there
    auto deadline = Clock::now() + patience;
    while (::access(place.c_str(), R_OK) != 0) {
      const int64_t grown = bytes_there(copy.folder + "/" + part_name(rank)) +
                            bytes_there(copy.folder + "/" + alive_name(rank));
      if (grown != bytes) deadline = Clock::now() + patience;
      bytes = grown;
      if (stop.stop_requested()) {
        notes.push_back(failure(fmt::format(
            "the run ended before rank {} had written its part of {}", rank, copy.folder)));
        return notes;
      }
      if (Clock::now() > deadline) {
        notes.push_back(
            failure(fmt::format("{}: the part of rank {} did not appear; do all hosts see that "
                                "folder?",
                                copy.folder, rank)));
        return notes;
      }
      std::this_thread::sleep_for(kLook);
    }
    const std::string text = format::read_file(place, kMostFragment);
    notes.push_back(text.empty() ? failure(fmt::format("rank {}: no space left to write {}/{}",
                                                       rank, copy.folder, part_name(rank)))
                                 : core::parse_json(text, place));
  }
  return notes;
}

/// Makes one index of all notes; throws the error of the first rank that failed.
format::Index Saver::index_of(const Snapshot& copy, const std::vector<core::Json>& notes) {
  for (const core::Json& note : notes)
    if (note.contains("failed")) throw CheckpointError(note.at("failed").get<std::string>());
  return format::index_of_parts(copy.folder, copy.step, notes, copy.extra);
}

/// Rank 0: writes the index and renames the folder, which makes the checkpoint complete.
void Saver::join_parts(const Snapshot& copy, const core::Json& own, const std::stop_token& stop) {
  try {
    const format::Index index = index_of(copy, wait_for_notes(copy, own, stop));
    for (int rank = 1; rank < group_.size(); ++rank)
      ::unlink((copy.folder + "/" + fragment_name(rank)).c_str());
    format::write_file(copy.folder + "/" + format::kIndexName, format::to_text(index));
    format::commit(folder_, copy.step);
  } catch (...) {
    try {
      format::remove_leftovers(folder_);
    } catch (const std::exception&) {  // the first error matters more
    }
    throw;
  }
  try {
    format::prune(folder_, keep_);
  } catch (const std::exception& error) {  // the checkpoint itself is saved
    core::Log(0, "checkpoint").warning(fmt::format("older steps stay: {}", error.what()));
  }
}

std::optional<std::string> Saver::wait() {
  if (writer_.joinable()) writer_.join();
  const std::lock_guard lock(mutex_);
  return problem_;
}

}  // namespace trireme::checkpoint
