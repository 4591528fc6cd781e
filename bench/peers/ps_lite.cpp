// ps-lite as a store of rows, for bench/ps: a step pushes gradients of random rows and pulls those
// rows, by one ZPushPull. Not part of the build, because no system has ps-lite as a package:
//
//     git clone https://github.com/dmlc/ps-lite && cd ps-lite
//     protoc --cpp_out=src --proto_path=src src/meta.proto
//     g++ -O3 -std=c++14 -pthread -Iinclude -Isrc TRIREME/bench/peers/ps_lite.cpp src/*.cc
//         -lzmq -lprotobuf -o TRIREME/build/bin/ps_lite_peer
//
//     ps_lite_peer PORT ROWS ELEMS KEYS [local]
//
// Starts a scheduler and a server of its own. The server keeps all rows in one array, without a
// table of keys. Prints a line when ready; then it reads lines, each a number of steps, does so
// many, and prints {"us": [...]}, with every result checked outside of the time. local: over unix
// sockets.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <iostream>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "ps/ps.h"

namespace {

struct Options {
  std::string port;
  size_t rows, elems, keys;
  bool local;
};

class Rows {
 public:
  Rows(size_t rows, size_t elems) : elems_(elems), values_(rows * elems) {}

  void answer(const ps::KVMeta& meta, const ps::KVPairs<float>& asked,
              ps::KVServer<float>* server) {
    ps::KVPairs<float> answer;
    answer.keys = asked.keys;
    answer.vals.resize(asked.keys.size() * elems_);
    for (size_t i = 0; i < asked.keys.size(); ++i) {
      float* const row = values_.data() + asked.keys[i] * elems_;
      const float* const gradient = asked.vals.data() + i * elems_;
      for (size_t k = 0; k < elems_; ++k) row[k] -= gradient[k];
      std::copy(row, row + elems_, answer.vals.data() + i * elems_);
    }
    server->Response(meta, answer);
  }

 private:
  size_t elems_;
  std::vector<float> values_;
};

void work(const Options& options) {
  ps::KVWorker<float> worker(0, 0);
  std::mt19937_64 random(1);
  std::vector<float> times(options.rows);
  std::cout << "ready" << std::endl;
  for (size_t steps = 0; std::cin >> steps;) {
    std::string took;
    for (size_t step = 0; step < steps; ++step) {
      std::set<ps::Key> chosen;  // ps-lite wants them sorted
      while (chosen.size() < options.keys) chosen.insert(random() % options.rows);
      const ps::SArray<ps::Key> keys(std::vector<ps::Key>(chosen.begin(), chosen.end()));
      const ps::SArray<float> ones(options.keys * options.elems, 1.0F);
      ps::SArray<float> pulled;
      const auto began = std::chrono::steady_clock::now();
      worker.Wait(worker.ZPushPull(keys, ones, &pulled));
      const std::chrono::duration<double, std::micro> time =
          std::chrono::steady_clock::now() - began;
      took += (step > 0 ? ", " : "") + std::to_string(time.count());
      if (pulled.size() != ones.size()) std::abort();
      for (size_t i = 0; i < keys.size(); ++i) {
        const float wanted = -++times[keys[i]];
        const float* const row = pulled.data() + i * options.elems;
        if (std::any_of(row, row + options.elems, [&](float value) { return value != wanted; }))
          std::abort();
      }
    }
    std::cout << "{\"us\": [" << took << "]}" << std::endl;
  }
}

/// Starts another process of the job, or makes this one of them.
void become(const char* role, const Options& options) {
  ::setenv("DMLC_ROLE", role, 1);
  ::setenv("DMLC_NUM_SERVER", "1", 1);
  ::setenv("DMLC_NUM_WORKER", "1", 1);
  ::setenv("DMLC_PS_ROOT_URI", "127.0.0.1", 1);
  ::setenv("DMLC_PS_ROOT_PORT", options.port.c_str(), 1);
  ::setenv("DMLC_NODE_HOST", "127.0.0.1", 1);
  if (options.local) ::setenv("DMLC_LOCAL", "1", 1);
  ps::Start(0, "ps_lite_peer");
  if (ps::IsServer()) {
    auto* const server = new ps::KVServer<float>(0);  // until the process ends
    auto* const rows = new Rows(options.rows, options.elems);
    server->set_request_handle([rows](const ps::KVMeta& meta, const ps::KVPairs<float>& asked,
                                      ps::KVServer<float>* to) { rows->answer(meta, asked, to); });
  }
  if (!ps::IsScheduler())  // no request comes before the server can answer it
    ps::Postoffice::Get()->Barrier(0, ps::kWorkerGroup + ps::kServerGroup);
  if (ps::IsWorker()) work(options);
  ps::Finalize(0, true);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 5) return 2;
  const Options options{argv[1], std::stoull(argv[2]), std::stoull(argv[3]), std::stoull(argv[4]),
                        argc > 5};
  for (const char* role : {"scheduler", "server"})
    if (::fork() == 0) {
      become(role, options);
      return 0;
    }
  become("worker", options);
}
