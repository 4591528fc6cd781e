// How long does loading a checkpoint take on a mesh that did not save it, over reading its files?
//
//   build/bin/checkpoint_load FOLDER [MIB [REPEAT]]
//
// Saves MIB (1024) of float32 tensors in FOLDER as two ranks of shard 2 would, then, in turns,
// reads the files from beginning to end and loads them as the ranks of some meshes do: two
// processes at the same time, into memory that is there already; what is loaded is verified. Prints
// a JSON line for each mesh: medians, and their ratio. (A rank of "columns" or "replica" needs
// something of every block, so each reads all the files.)
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>

#include "trireme/format/folder.h"
#include "trireme/format/load.h"
#include "trireme/format/reshard.h"
#include "trireme/layout/layout.h"

namespace {

using namespace trireme;

constexpr int kRanks = 2;
constexpr int64_t kRows = 4096, kColumns = 2048;  // 32 MiB a tensor

using Body = std::function<void(int rank, const std::function<void()>& sync)>;

/// The time between two calls of `sync`, which both processes make.
double seconds_of(const Body& body) {
  int up[2], down[2];
  if (::pipe(up) != 0 || ::pipe(down) != 0) std::abort();
  for (int rank = 0; rank < kRanks; ++rank) {
    if (::fork() != 0) continue;
    body(rank, [&] {
      char byte = 0;
      if (::write(up[1], &byte, 1) != 1 || ::read(down[0], &byte, 1) != 1) std::abort();
    });
    ::_exit(0);
  }
  const auto meet = [&] {
    char bytes[kRanks] = {};
    for (int rank = 0; rank < kRanks; ++rank)
      if (::read(up[0], bytes, 1) != 1) std::abort();
    const auto now = std::chrono::steady_clock::now();
    if (::write(down[1], bytes, kRanks) != kRanks) std::abort();
    return now;
  };
  const auto began = meet();
  const auto ended = meet();
  for (int rank = 0; rank < kRanks; ++rank) ::wait(nullptr);
  for (const int fd : {up[0], up[1], down[0], down[1]}) ::close(fd);
  return std::chrono::duration<double>(ended - began).count();
}

/// Each process reads one of the files into memory.
double read_files(const format::Index& index, const std::string& folder) {
  return seconds_of([&](int rank, const std::function<void()>& sync) {
    const auto& [name, info] = *std::next(index.files.begin(), rank);
    std::vector<char> memory(static_cast<size_t>(info.bytes), 'x');
    sync();
    const int fd = ::open((folder + "/" + name).c_str(), O_RDONLY);
    for (int64_t done = 0; done < info.bytes;)
      done += ::read(fd, memory.data() + done, std::min<size_t>(1 << 20, memory.size() - done));
    ::close(fd);
    sync();
  });
}

double load(const std::string& folder, const std::vector<Cut>& cuts, const Degrees& degrees) {
  return seconds_of([&](int rank, const std::function<void()>& sync) {
    std::vector<Piece> wanted;
    std::vector<std::vector<float>> room;
    const format::Index index = format::read_index(folder);
    for (const auto& [name, info] : index.tensors)
      for (const Piece& piece :
           Layout(info.shape, cuts).pieces(name, coord_of(rank, degrees), degrees)) {
        wanted.push_back(piece);
        room.emplace_back(static_cast<size_t>(piece.count), 1.0F);
      }
    sync();
    format::Checkpoint saved(folder);
    for (size_t i = 0; i < wanted.size(); ++i) saved.read(wanted[i], "F32", room[i].data());
    sync();
  });
}

void save(const std::string& folder, int64_t mib) {
  const std::string whole = format::begin_beside(folder + "/whole");
  std::vector<format::Entry> entries;
  format::Index index;
  for (int64_t i = 0; i < mib / 32; ++i) {
    const std::string name = fmt::format("layer.{}.weight", i);
    entries.push_back({.name = name, .dtype = "F32", .shape = {kRows, kColumns}});
    index.tensors[name] = {
        "F32", {kRows, kColumns}, {{"a", name, {0, 0}, {kRows, kColumns}, 0, kRows * kColumns}}};
  }
  format::SafetensorsWriter writer(whole + "/a", entries);
  std::vector<float> row(kColumns);
  for (int64_t i = 0; i < mib / 32 * kRows; ++i) {
    std::fill(row.begin(), row.end(), static_cast<float>(i));
    writer.append(row.data(), kColumns * 4);
  }
  index.files["a"] = writer.finish();
  format::write_file(whole + "/" + format::kIndexName, format::to_text(index));
  format::commit_beside(folder + "/whole");
  format::reshard(folder + "/whole", folder + "/saved", {.ranks = kRanks});
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    fmt::print(stderr, "usage: checkpoint_load FOLDER [MIB [REPEAT]]\n");
    return 2;
  }
  const std::string folder = argv[1], saved = folder + "/saved";
  const int64_t mib = argc > 2 ? std::atoll(argv[2]) : 1024;
  const int repeat = argc > 3 ? std::atoi(argv[3]) : 5;
  save(folder, mib);
  const format::Index index = format::read_index(saved);
  struct Mesh {
    const char* name;
    std::vector<Cut> cuts;
    Degrees degrees;
  };
  const Mesh meshes[] = {{"shard 2", {{Axis::Shard}}, {.shard = 2}},
                         {"rows over tensor 2", {{Axis::Tensor, 0}}, {.tensor = 2}},
                         {"columns over tensor 2", {{Axis::Tensor, 1}}, {.tensor = 2}},
                         {"replica 2", {}, {.replica = 2}}};
  for (const Mesh& mesh : meshes) {
    std::vector<double> reads, loads;
    for (int round = 0; round < repeat; ++round) {
      reads.push_back(read_files(index, saved));
      loads.push_back(load(saved, mesh.cuts, mesh.degrees));
    }
    fmt::print(
        R"({{"bench":"checkpoint_load","saved":"shard 2","mesh":"{}","mib":{},"read_ms":{:.1f},"load_ms":{:.1f},"ratio":{:.2f}}})"
        "\n",
        mesh.name, mib, 1e3 * median(reads), 1e3 * median(loads), median(loads) / median(reads));
  }
}
