#include "trireme/checkpoint/saver.h"

#include <fmt/ranges.h>
#include <sys/resource.h>
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
#include "trireme/format/safetensors.h"

namespace trireme::checkpoint {

namespace {

using namespace std::chrono_literals;

constexpr auto kPatience = 10min;  // of rank 0, for the others' parts
constexpr auto kLook = 5ms;
constexpr int64_t kMostFragment = int64_t{256} << 20;

std::string part_name(int rank) {
  return fmt::format("part-{:05}.safetensors", rank);
}
std::string fragment_name(int rank) {
  return fmt::format("part-{:05}.json", rank);
}

Place place_in(const comm::Communicator& group) {
  return {group.rank(), group.size()};
}

bool is_whole(const Piece& piece) {
  return piece.shape == piece.whole && piece.count == Box{{}, piece.whole}.numel();
}

/// Under which name a piece lies in its file: the tensor's, where it is all of it.
std::string key_of(const Piece& piece) {
  if (is_whole(piece)) return piece.name;
  return fmt::format("{}@{}+{}", piece.name, fmt::join(piece.offset, ","), piece.begin);
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
  for (Item& item : share(state.items, all_, alike_))
    copy.items.push_back(
        {std::move(item.piece),
         item.tensor.to(at::kCPU, /*non_blocking=*/false, /*copy=*/true).contiguous()});
  writer_ = std::jthread(
      [this, kept = std::move(copy)](std::stop_token stop) mutable { run(std::move(kept), stop); });
}

void Saver::run(Copy copy, std::stop_token stop) {
  // The steps that go on meanwhile come first.
  ::setpriority(PRIO_PROCESS, static_cast<id_t>(::syscall(SYS_gettid)), 19);
  try {
    write_part(copy);
    copy.items.clear();
    if (group_.rank() == 0) join_parts(copy, stop);
  } catch (const std::exception& error) {
    const std::lock_guard lock(mutex_);
    problem_ = error.what();
    core::Log(group_.rank(), "checkpoint")
        .warning(
            fmt::format("step {} is not saved: {}; training goes on", copy.step, error.what()));
  }
}

/// This rank's file, then a note that it is there (or why it is not).
void Saver::write_part(const Copy& copy) {
  const std::string file = part_name(group_.rank());
  core::Json note = core::Json::object();
  std::string failed;
  try {
    std::vector<format::Entry> entries;
    core::Json pieces = core::Json::array();
    for (const Item& item : copy.items) {
      const Piece& piece = item.piece;
      format::Entry entry;
      entry.name = key_of(piece);
      entry.dtype = std::string(dtype_name(item.tensor.scalar_type()));
      entry.shape = is_whole(piece) ? piece.whole : std::vector<int64_t>{piece.count};
      pieces.push_back({{"name", piece.name},
                        {"dtype", entry.dtype},
                        {"whole", piece.whole},
                        {"key", entry.name},
                        {"offset", piece.offset},
                        {"shape", piece.shape},
                        {"begin", piece.begin},
                        {"count", piece.count}});
      entries.push_back(std::move(entry));
    }
    format::SafetensorsWriter writer(copy.folder + "/" + file, std::move(entries),
                                     {{"format", "pt"}, {"step", std::to_string(copy.step)}});
    for (const Item& item : copy.items)
      writer.append(item.tensor.data_ptr(), static_cast<int64_t>(item.tensor.nbytes()));
    const format::FileInfo info = writer.finish();
    note = {{"file", file},
            {"bytes", info.bytes},
            {"block_bytes", info.block_bytes},
            {"checksums", info.checksums},
            {"pieces", pieces}};
  } catch (const std::exception& error) {
    failed = error.what();
    note = {{"failed", fmt::format("rank {}: {}", group_.rank(), failed)}};
  }
  // The note appears whole, or not at all.
  const std::string place = copy.folder + "/" + fragment_name(group_.rank());
  try {
    format::write_file(place + ".new", note.dump());
    if (::rename((place + ".new").c_str(), place.c_str()) != 0)
      throw CheckpointError(fmt::format("{}: {}", place, core::errno_text(errno)));
  } catch (const CheckpointError&) {
    // No room even for that: an empty note needs none, and says that it failed.
    ::unlink((copy.folder + "/" + file).c_str());
    format::File::create(place).finish();
    if (failed.empty()) throw;
  }
  if (!failed.empty() && group_.rank() != 0) throw CheckpointError(failed);
}

/// Rank 0: waits for all notes, makes the index of them, and puts the checkpoint in its place.
void Saver::join_parts(const Copy& copy, const std::stop_token& stop) {
  format::Index index;
  index.step = copy.step;
  index.extra = copy.extra;
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  try {
    for (int rank = 0; rank < group_.size(); ++rank) {
      const std::string place = copy.folder + "/" + fragment_name(rank);
      while (::access(place.c_str(), R_OK) != 0) {
        if (stop.stop_requested() || std::chrono::steady_clock::now() > deadline)
          throw CheckpointError(
              fmt::format("{}: the part of rank {} did not appear; do all hosts see that folder?",
                          copy.folder, rank));
        std::this_thread::sleep_for(kLook);
      }
      const std::string text = format::read_file(place, kMostFragment);
      if (text.empty())
        throw CheckpointError(fmt::format("rank {}: no space left for its part", rank));
      const core::Json note = core::parse_json(text, place);
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
    for (int rank = 0; rank < group_.size(); ++rank)
      ::unlink((copy.folder + "/" + fragment_name(rank)).c_str());
    format::check_complete(index, copy.folder);
    format::write_file(copy.folder + "/" + format::kIndexName, format::to_text(index));
    format::commit(folder_, copy.step);
  } catch (...) {
    try {
      format::remove_leftovers(folder_);
    } catch (const std::exception&) {  // what failed is more to the point
    }
    throw;
  }
  format::prune(folder_, keep_);
}

std::optional<std::string> Saver::wait() {
  if (writer_.joinable()) writer_.join();
  const std::lock_guard lock(mutex_);
  return problem_;
}

}  // namespace trireme::checkpoint
