// Building a data set of tokens:
//
//   inputs ─> parts of about 16 MiB ─threads─> NAME.building/part-00000, part-00001, ...
//          ─> all of them, in order ─────────> NAME.bin.tmp, NAME.idx.tmp ─renamed─> NAME.bin,
//          NAME.idx
//
// What the parts are is a function of the inputs alone, written down in NAME.building/plan. A part
// is written beside its name and renamed, so it is whole or absent.
//
//   part  | documents u64 | tokens u64 | lengths int32[documents] | tokens uint16 or int32[tokens]
//   |
#include "trireme/format/text/build.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <thread>

#include "trireme/core/error.h"
#include "trireme/core/hash.h"
#include "trireme/format/file.h"
#include "trireme/format/mapped_file.h"
#include "trireme/format/text/documents.h"
#include "trireme/format/token_stream.h"

namespace trireme::format {

namespace {

using Part = std::vector<DocumentRange>;

struct Plan {
  std::vector<Part> parts;
  std::vector<int64_t> bytes;  ///< of each part
  int64_t all_bytes = 0;
  std::string text;  ///< tells this build from others
};

/// Consecutive files until they have enough bytes; .jsonl files are cut between lines.
Plan plan_of(const Tokenizer& tokenizer, const BuildJob& job) {
  Plan plan;
  std::string files;
  int64_t room = 0;
  for (const std::string& path : document_files(job.inputs)) {
    struct stat status {};
    if (::stat(path.c_str(), &status) != 0)
      throw Error(fmt::format("cannot open {}: {}", path, core::errno_text(errno)));
    const int64_t bytes = status.st_size;
    files +=
        fmt::format("{} {} {}.{}\n", path, bytes, status.st_mtim.tv_sec, status.st_mtim.tv_nsec);
    const int64_t each = has_lines(path) ? job.part_bytes : std::max<int64_t>(bytes, 1);
    for (int64_t begin = 0; begin < bytes; begin += each) {
      const DocumentRange range{path, begin, std::min(bytes, begin + each)};
      if (room <= 0) {
        plan.parts.emplace_back();
        plan.bytes.push_back(0);
        room = job.part_bytes;
      }
      plan.parts.back().push_back(range);
      plan.bytes.back() += range.end - range.begin;
      room -= range.end - range.begin;
    }
    plan.all_bytes += bytes;
  }
  plan.text = fmt::format("{}\n{} files, hash {:016x}\n{} parts of {} bytes\n",
                          tokenizer.identity(), std::ranges::count(files, '\n'),
                          core::hash64(files), plan.parts.size(), job.part_bytes);
  return plan;
}

template <class T>
void put(const T& number, std::string& to) {
  to.append(reinterpret_cast<const char*>(&number), sizeof number);
}

class Build {
 public:
  Build(const Tokenizer& tokenizer, const BuildJob& job)
      : tokenizer_(tokenizer),
        job_(job),
        plan_(plan_of(tokenizer, job)),
        type_(tokenizer.vocab_size() <= 65536 ? TokenType::U16 : TokenType::I32),
        folder_(job.out + ".building") {
    if (plan_.parts.empty()) throw Error("there is no text in the inputs");
  }

  BuildResult run(const std::function<void(BuildProgress)>& progress) {
    prepare();
    make_parts(progress);
    assemble();
    remove_parts();
    return result_;
  }

 private:
  std::string part_path(size_t part) const { return fmt::format("{}/part-{:05}", folder_, part); }

  /// What is there must be of the same inputs and tokenizer.
  void prepare() {
    const std::string path = folder_ + "/plan";
    if (is_file(path)) {
      if (read_file(path, 1 << 16) != plan_.text)
        throw Error(
            fmt::format("{} was left by a build of other files or of another tokenizer; "
                        "remove it, or name another data set",
                        folder_));
      return;
    }
    if (::mkdir(folder_.c_str(), 0777) != 0 && errno != EEXIST)
      throw Error(fmt::format("cannot make {}: {}", folder_, core::errno_text(errno)));
    place(path, plan_.text);
  }

  static void place(const std::string& path, const std::string& bytes) {
    write_file(path + ".tmp", bytes);
    rename(path + ".tmp", path);
  }
  static void rename(const std::string& from, const std::string& to) {
    if (::rename(from.c_str(), to.c_str()) != 0)
      throw Error(fmt::format("cannot rename {}: {}", from, core::errno_text(errno)));
  }

  void make_part(size_t part) const {
    const DocumentEncoder encoder(tokenizer_);
    std::vector<int32_t> tokens;
    std::string lengths, packed, all;
    uint64_t documents = 0;
    for (const DocumentRange& range : plan_.parts[part])
      for_each_document(range, [&](std::string_view document) {
        const size_t before = tokens.size();
        encoder.append(document, tokens);
        put(static_cast<int32_t>(tokens.size() - before), lengths);
        ++documents;
      });
    if (type_ == TokenType::U16)
      for (const int32_t token : tokens) put(static_cast<uint16_t>(token), packed);
    else
      packed.assign(reinterpret_cast<const char*>(tokens.data()), tokens.size() * sizeof(int32_t));
    put(documents, all);
    put(uint64_t{tokens.size()}, all);
    place(part_path(part), all + lengths + packed);
  }

  /// Parts are taken in order by whoever is free. The first error stops all.
  void make_parts(const std::function<void(BuildProgress)>& progress) {
    std::mutex mutex;
    std::condition_variable changed;
    size_t next = 0, working = static_cast<size_t>(std::max(1, job_.threads));
    int64_t done_bytes = 0;
    std::exception_ptr failed;
    const auto work = [&] {
      std::unique_lock lock(mutex);
      while (next < plan_.parts.size() && !failed) {
        const size_t part = next++;
        lock.unlock();
        std::exception_ptr mine;
        try {
          if (!is_file(part_path(part))) make_part(part);
        } catch (...) {
          mine = std::current_exception();
        }
        lock.lock();
        if (mine && !failed) failed = mine;
        done_bytes += plan_.bytes[part];
        changed.notify_all();
      }
      --working;
      changed.notify_all();
    };
    std::vector<std::jthread> threads;
    for (size_t i = working; i > 0; --i) threads.emplace_back(work);
    std::unique_lock lock(mutex);
    while (working > 0) {
      changed.wait(lock);
      try {
        if (progress && !failed) progress({done_bytes, plan_.all_bytes});
      } catch (...) {
        failed = std::current_exception();
      }
    }
    lock.unlock();
    threads.clear();
    if (failed) std::rethrow_exception(failed);
  }

  void assemble() {
    const std::string bin = job_.out + ".bin", idx = job_.out + ".idx";
    std::string lengths;
    File data = File::create(bin + ".tmp");
    for (size_t part = 0; part < plan_.parts.size(); ++part) {
      const MappedFile file(part_path(part));
      const auto documents = file.at<int64_t>(0), tokens = file.at<int64_t>(8);
      const int64_t first = 16 + 4 * documents, end = first + token_bytes(type_) * tokens;
      if (documents < 0 || tokens < 0 || end != file.bytes())
        throw Error(fmt::format("{} is damaged; remove it and build again", file.path()));
      lengths.append(file.data() + 16, static_cast<size_t>(4 * documents));
      data.write(file.data() + first, end - first);
      result_.documents += documents;
      result_.tokens += tokens;
    }
    data.finish();
    if (result_.documents == 0) throw Error("there is no text in the inputs");
    write_file(idx + ".tmp", index_of(lengths));
    // An old index does not fit the new tokens.
    ::unlink(idx.c_str());
    rename(bin + ".tmp", bin);
    rename(idx + ".tmp", idx);
    result_.bytes = plan_.all_bytes;
  }

  /// A Megatron index of documents of one sequence each.
  std::string index_of(const std::string& lengths) const {
    std::string index(kMegatronMagic, sizeof kMegatronMagic);
    put(uint64_t{1}, index);
    put(static_cast<uint8_t>(type_ == TokenType::U16 ? 8 : 4), index);
    put(result_.documents, index);
    put(result_.documents + 1, index);
    index += lengths;
    int64_t place = 0;
    for (int64_t i = 0; i < result_.documents; ++i) {
      int32_t length;
      std::memcpy(&length, lengths.data() + 4 * i, sizeof length);
      put(place, index);
      place += token_bytes(type_) * length;
    }
    for (int64_t i = 0; i <= result_.documents; ++i) put(i, index);
    return index;
  }

  void remove_parts() const {
    for (size_t part = 0; part < plan_.parts.size(); ++part) {
      ::unlink(part_path(part).c_str());
      ::unlink((part_path(part) + ".tmp").c_str());
    }
    ::unlink((folder_ + "/plan").c_str());
    ::rmdir(folder_.c_str());
  }

  const Tokenizer& tokenizer_;
  const BuildJob& job_;
  Plan plan_;
  TokenType type_;
  std::string folder_;
  BuildResult result_;
};

}  // namespace

BuildResult build_tokens(const Tokenizer& tokenizer, const BuildJob& job,
                         const std::function<void(BuildProgress)>& progress) {
  return Build(tokenizer, job).run(progress);
}

}  // namespace trireme::format
