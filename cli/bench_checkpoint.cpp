#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include "cli/rank_commands.h"
#include "trireme/checkpoint/resume.h"
#include "trireme/checkpoint/saver.h"
#include "trireme/core/error.h"
#include "trireme/core/json.h"
#include "trireme/format/folder.h"
#include "trireme/format/index.h"
#include "trireme/layout/layout.h"
#include "trireme/mesh/init.h"

namespace trireme::cli {

namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kRows = 4096, kColumns = 2048, kTensorBytes = kRows * kColumns * 4;

/// How the tensors lie on a mesh: by which cuts, and whether shard divides them.
struct Placement {
  std::vector<Cut> cuts = {};
  Sharding sharding = Sharding::None;
};

/// This rank's pieces of `tensors` tensors.
checkpoint::State state_of(int64_t tensors, const Placement& placement, const Mesh& mesh) {
  checkpoint::State state;
  const Layout layout({kRows, kColumns}, placement.cuts);
  const auto reductions =
      reductions_of(layout, {}, mesh.degrees(), mesh.coord(), {.sharding = placement.sharding});
  for (int64_t i = 0; i < tensors; ++i) {
    for (const Reduction& one : reductions) {
      Piece piece = piece_of(fmt::format("layer.{}.weight", i), layout, one);
      at::Tensor values = at::full({piece.count}, static_cast<double>(i + 1), at::kFloat);
      state.items.push_back({std::move(piece), std::move(values), one.same});
    }
  }
  return state;
}

/// How long `body` takes on the slowest rank, in milliseconds.
template <class Body>
double time(const comm::Communicator& world, const Body& body) {
  world.barrier();
  const auto began = Clock::now();
  body();
  at::Tensor ms = at::full(
      {1}, std::chrono::duration<double, std::milli>(Clock::now() - began).count(), at::kDouble);
  world.all_reduce(ms, comm::ReduceOp::Max).wait();
  return ms.item<double>();
}

/// Reads a whole file into memory that is allocated already.
void read_file(const std::string& path, at::Tensor& memory) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) throw Error(fmt::format("{}: {}", path, core::errno_text(errno)));
  int64_t done = 0;
  for (ssize_t got = 1; got > 0 && done < memory.numel(); done += got)
    got = ::read(fd, memory.data_ptr<uint8_t>() + done,
                 static_cast<std::size_t>(std::min<int64_t>(1 << 20, memory.numel() - done)));
  ::close(fd);
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return std::round(values[values.size() / 2] * 10) / 10;
}

}  // namespace

int bench_checkpoint(const std::vector<std::string>& args) {
  const std::string folder = args.at(0);
  const int64_t tensors = std::max<int64_t>(1, std::stoll(args.at(1)) / kTensorBytes);
  const int repeat = std::stoi(args.at(2));
  const comm::Communicator world = init();
  const int size = world.size();
  const auto say = [&](const core::Json& line) {
    if (world.rank() == 0) fmt::print("{}\n", line.dump());
  };
  const Mesh saving(world, {.shard = size});
  std::vector<double> copies, saves;
  {
    checkpoint::Saver saver(folder, saving, /*keep=*/1, {.after_failure = ""});
    const checkpoint::State state = state_of(tensors, {.sharding = Sharding::Parameters}, saving);
    for (int step = 1; step <= repeat; ++step) {
      double copy = 0;
      saves.push_back(time(world, [&] {
        const auto began = Clock::now();
        saver.save(step, state);
        copy = std::chrono::duration<double, std::milli>(Clock::now() - began).count();
        if (const auto problem = saver.wait()) throw Error(*problem);
      }));
      copies.push_back(copy);
    }
  }
  say({{"bench", "checkpoint"},
       {"what", "save"},
       {"ranks", size},
       {"bytes", tensors * kTensorBytes},
       {"copy_ms", median(copies)},
       {"ms", median(saves)}});
  world.barrier();
  const std::string path = folder + "/" + format::step_name(repeat);
  struct Case {
    std::string name;
    Placement placement;
    Degrees degrees;
  };
  const Case cases[] = {
      {fmt::format("shard {}", size), {.sharding = Sharding::Parameters}, {.shard = size}},
      {fmt::format("rows over tensor {}", size), {{{Axis::Tensor, 0}}}, {.tensor = size}},
      {fmt::format("columns over tensor {}", size), {{{Axis::Tensor, 1}}}, {.tensor = size}},
      {fmt::format("replica {}", size), {}, {.replica = size}}};
  const format::Index index = format::read_index(path);
  const auto& [file, info] = *std::next(index.files.begin(), world.rank());
  for (const Case& one : cases) {
    const Mesh mesh(world, one.degrees);
    const checkpoint::State state = state_of(tensors, one.placement, mesh);
    at::Tensor memory = at::full({info.bytes}, 1, at::kByte);
    std::vector<double> loads, reads;
    for (int i = 0; i < repeat; ++i) {
      reads.push_back(time(world, [&] { read_file(path + "/" + file, memory); }));
      loads.push_back(time(world, [&] {
        format::Checkpoint saved(path);
        checkpoint::load(saved, state);
      }));
    }
    for (const checkpoint::Item& item : state.items) {
      const auto wanted = static_cast<float>(std::stoi(item.piece.name.substr(6)) + 1);
      if (!item.tensor.eq(wanted).all().item<bool>())
        throw Error(fmt::format("'{}' was not loaded as it was saved", item.piece.name));
    }
    say({{"bench", "checkpoint"},
         {"what", "load"},
         {"ranks", size},
         {"mesh", one.name},
         {"read_ms", median(reads)},
         {"ms", median(loads)}});
  }
  return 0;
}

}  // namespace trireme::cli
