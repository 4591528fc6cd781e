#include "trireme/checkpoint/saver.h"

#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <ATen/ops/empty.h>

#include <chrono>
#include <cstring>

#include "trireme/comm/texts.h"
#include "trireme/core/error.h"
#include "trireme/core/log.h"
#include "trireme/format/folder.h"
#include "trireme/format/index.h"
#include "trireme/format/load.h"
#include "trireme/format/safetensors.h"

namespace trireme::checkpoint {

namespace {

using namespace std::chrono_literals;

constexpr auto kPatience = 240s;     // of rank 0, with a part of another's that does not grow
constexpr auto kLastPatience = 10s;  // if the checkpoint is lost anyway
constexpr auto kLook = 5ms;
constexpr int64_t kMostFragment = int64_t{256} << 20;

std::string part_name(int rank) {
  return fmt::format("part-{:05}.safetensors", rank);
}
std::string fragment_name(int rank) {
  return fmt::format("part-{:05}.json", rank);
}

int64_t bytes_there(const std::string& path) {
  struct stat status {};
  return ::stat(path.c_str(), &status) == 0 ? status.st_size : -1;
}

/// The note of a rank that could not write its part.
core::Json failure(const std::string& why) {
  core::Json note = core::Json::object();
  note["failed"] = why;
  return note;
}

Place place_in(const comm::Communicator& group) {
  return {group.rank(), group.size()};
}

}  // namespace

/// A rank's share of a state, in memory of its own.
struct Saver::Copy {
  int64_t step = 0;
  std::string folder;  ///< the step's, while it is being written
  std::vector<Item> items;
  core::Json extra;
};

Saver::Saver(std::string folder, const Mesh& mesh, int64_t keep)
    : folder_(std::move(folder)),
      group_(mesh.world()),
      all_(place_in(mesh.group({Axis::Replica, Axis::Shard, Axis::Context}))),
      alike_(place_in(mesh.group({Axis::Replica, Axis::Context}))),
      keep_(keep) {}

Saver::~Saver() {
  writer_.request_stop();  // nobody waits for parts of ranks that are gone
}

void Saver::save(int64_t step, const State& state) {
  if (writer_.joinable()) writer_.join();
  Copy copy{step, "", {}, state.extra};
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
    if (group_.rank() == 0)
      core::Log(0, "checkpoint")
          .warning(
              fmt::format("step {} is not saved: {}; training goes on", step, answer.substr(1)));
    return;
  }
  copy.folder = answer.substr(1);
  const at::NoGradGuard guard;
  for (Item& item : share(state.items, all_, alike_)) {
    at::Tensor own = at::empty(item.tensor.sizes(), item.tensor.options().device(at::kCPU));
    own.copy_(item.tensor);
    copy.items.push_back({std::move(item.piece), std::move(own)});
  }
  writer_ = std::jthread(
      [this, kept = std::move(copy)](std::stop_token stop) mutable { run(std::move(kept), stop); });
}

void Saver::run(Copy copy, std::stop_token stop) {
  // The steps that go on meanwhile come first.
  ::setpriority(PRIO_PROCESS, static_cast<id_t>(::syscall(SYS_gettid)), 19);
  try {
    const core::Json note = write_part(copy);
    copy.items.clear();
    if (group_.rank() == 0)
      join_parts(copy, note, stop);
    else
      leave_note(copy, note);
  } catch (const std::exception& error) {
    const std::lock_guard lock(mutex_);
    problem_ = error.what();
    core::Log(group_.rank(), "checkpoint")
        .warning(
            fmt::format("step {} is not saved: {}; training goes on", copy.step, error.what()));
  }
}

/// This rank's file. Returns what is in it, or why it is not there.
core::Json Saver::write_part(Copy& copy) const {
  const std::string file = part_name(group_.rank());
  try {
    std::vector<format::Entry> entries;
    core::Json pieces = core::Json::array();
    for (const Item& item : copy.items) {
      const Piece& piece = item.piece;
      entries.push_back(format::entry_of(piece, dtype_name(item.tensor.scalar_type())));
      pieces.push_back({{"name", piece.name},
                        {"dtype", entries.back().dtype},
                        {"whole", piece.whole},
                        {"key", entries.back().name},
                        {"offset", piece.offset},
                        {"shape", piece.shape},
                        {"begin", piece.begin},
                        {"count", piece.count}});
    }
    format::SafetensorsWriter writer(copy.folder + "/" + file, std::move(entries),
                                     {{"format", "pt"}, {"step", std::to_string(copy.step)}});
    for (Item& item : copy.items) {
      writer.append(item.tensor.data_ptr(), static_cast<int64_t>(item.tensor.nbytes()));
      item.tensor.reset();
    }
    const format::FileInfo info = writer.finish();
    return {{"file", file},
            {"bytes", info.bytes},
            {"block_bytes", info.block_bytes},
            {"checksums", info.checksums},
            {"pieces", pieces}};
  } catch (const std::exception& error) {
    return failure(fmt::format("rank {}: {}", group_.rank(), error.what()));
  }
}

/// Tells rank 0. The note appears whole, or not at all.
void Saver::leave_note(const Copy& copy, const core::Json& note) const {
  const std::string place = copy.folder + "/" + fragment_name(group_.rank());
  try {
    format::write_file(place + ".new", note.dump());
    if (::rename((place + ".new").c_str(), place.c_str()) != 0)
      throw CheckpointError(fmt::format("cannot rename {}: {}", place, core::errno_text(errno)));
  } catch (const CheckpointError&) {
    // No room even for that: an empty note needs none, and says that it failed.
    ::unlink((copy.folder + "/" + part_name(group_.rank())).c_str());
    format::File::create(place).finish();
    if (!note.contains("failed")) throw;
  }
  if (note.contains("failed")) throw CheckpointError(note.at("failed").get<std::string>());
}

/// Rank 0: what each rank says of its part. All have said it before anything is made of it, or
/// removed.
std::vector<core::Json> Saver::wait_for_notes(const Copy& copy, const core::Json& own,
                                              const std::stop_token& stop) const {
  using Clock = std::chrono::steady_clock;
  const auto patience = own.contains("failed") ? kLastPatience : kPatience;
  std::vector<core::Json> notes = {own};
  for (int rank = 1; rank < group_.size(); ++rank) {
    const std::string place = copy.folder + "/" + fragment_name(rank);
    int64_t bytes = -1;
    auto deadline = Clock::now() + patience;
    while (::access(place.c_str(), R_OK) != 0) {
      const int64_t grown = bytes_there(copy.folder + "/" + part_name(rank));
      if (grown != bytes) deadline = Clock::now() + patience;
      bytes = grown;
      if (stop.stop_requested() || Clock::now() > deadline) {
        notes.push_back(
            failure(fmt::format("{}: the part of rank {} did not appear; do all hosts see that "
                                "folder?",
                                copy.folder, rank)));
        return notes;
      }
      std::this_thread::sleep_for(kLook);
    }
    const std::string text = format::read_file(place, kMostFragment);
    notes.push_back(text.empty() ? failure(fmt::format("rank {}: no space left for its part", rank))
                                 : core::parse_json(text, place));
  }
  return notes;
}

/// One index of all notes; throws what the first rank that failed says.
format::Index Saver::index_of(const Copy& copy, const std::vector<core::Json>& notes) {
  format::Index index;
  index.step = copy.step;
  index.extra = copy.extra;
  for (const core::Json& note : notes) {
    if (note.contains("failed")) throw CheckpointError(note.at("failed").get<std::string>());
    const std::string file = note.at("file");
    index.files[file] = {note.at("bytes"), note.at("block_bytes"),
                         note.at("checksums").get<std::vector<std::string>>()};
    for (const auto& piece : note.at("pieces")) {
      format::TensorInfo& tensor = index.tensors[piece.at("name")];
      tensor.dtype = piece.at("dtype");
      tensor.shape = piece.at("whole").get<std::vector<int64_t>>();
      tensor.pieces.push_back(
          {file, piece.at("key"), piece.at("offset").get<std::vector<int64_t>>(),
           piece.at("shape").get<std::vector<int64_t>>(), piece.at("begin"), piece.at("count")});
    }
  }
  format::check_complete(index, copy.folder);
  return index;
}

/// Rank 0: makes the index of all notes, and puts the checkpoint in its place.
void Saver::join_parts(const Copy& copy, const core::Json& own, const std::stop_token& stop) {
  try {
    const format::Index index = index_of(copy, wait_for_notes(copy, own, stop));
    for (int rank = 1; rank < group_.size(); ++rank)
      ::unlink((copy.folder + "/" + fragment_name(rank)).c_str());
    format::write_file(copy.folder + "/" + format::kIndexName, format::to_text(index));
    format::commit(folder_, copy.step);
  } catch (...) {
    try {
      format::remove_leftovers(folder_);
    } catch (const std::exception&) {  // what failed is more to the point
    }
    throw;
  }
  try {
    format::prune(folder_, keep_);
  } catch (const std::exception& error) {  // it is saved all the same
    core::Log(0, "checkpoint").warning(fmt::format("older steps stay: {}", error.what()));
  }
}

std::optional<std::string> Saver::wait() {
  if (writer_.joinable()) writer_.join();
  const std::lock_guard lock(mutex_);
  return problem_;
}

}  // namespace trireme::checkpoint
