// Redis as a store of rows, for bench/ps: a step writes rows of floats and reads as many, by one
// pipeline of MSET and MGET over keys of 8 bytes.
//
//     redis_peer SOCKET|PORT ROWS ELEMS KEYS [fill]
//
// Prints a line, once the store is filled. Then it reads lines, each a number of steps, does so
// many, and prints {"us": [...]}: how long each took, without making the rows up, and with every
// reply checked outside of the time.
#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <iostream>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "trireme/core/error.h"

using namespace trireme;

namespace {

int connect_to(const std::string& where) {
  const bool local = where.find('/') != std::string::npos;
  const int fd = ::socket(local ? AF_UNIX : AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  int failed = -1;
  if (local) {
    sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
    where.copy(address.sun_path, sizeof address.sun_path - 1);
    failed = ::connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address);
  } else {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(std::stoi(where)));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    failed = ::connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address);
    const int yes = 1;
    ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    ::setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, "reno", 4);  // as ours on loopback
  }
  core::check(failed == 0, "no Redis at {}", where);
  return fd;
}

class Store {
 public:
  Store(const std::string& where, size_t elems)
      : fd_(connect_to(where)), row_bytes_(elems * sizeof(float)) {}

  /// Writes rows, and returns the values that are there then if they are wanted.
  enum class Read : bool { No, Yes };
  std::string write(const std::vector<uint64_t>& keys, const std::string& rows, Read read) {
    std::string& text = request_;
    text.clear();
    text += fmt::format("*{}\r\n$4\r\nMSET\r\n", 1 + 2 * keys.size());
    const std::string value_head = fmt::format("\r\n${}\r\n", row_bytes_);
    for (size_t i = 0; i < keys.size(); ++i) {
      text += "$8\r\n";
      text.append(reinterpret_cast<const char*>(&keys[i]), sizeof keys[i]);
      text += value_head;
      text.append(rows, i * row_bytes_, row_bytes_);
      text += "\r\n";
    }
    if (read == Read::Yes) {
      text += fmt::format("*{}\r\n$4\r\nMGET\r\n", 1 + keys.size());
      for (const uint64_t& key : keys) {
        text += "$8\r\n";
        text.append(reinterpret_cast<const char*>(&key), sizeof key);
        text += "\r\n";
      }
    }
    for (size_t sent = 0; sent < text.size();) {
      const ssize_t now = ::send(fd_, text.data() + sent, text.size() - sent, MSG_NOSIGNAL);
      core::check(now > 0, "Redis went away");
      sent += static_cast<size_t>(now);
    }
    receive("+OK\r\n");
    std::string found;
    if (read == Read::No) return found;
    found.resize(keys.size() * row_bytes_);
    receive(fmt::format("*{}\r\n", keys.size()));
    const std::string head = fmt::format("${}\r\n", row_bytes_);
    for (size_t i = 0; i < keys.size(); ++i) {
      receive(head);
      take(found.data() + i * row_bytes_, row_bytes_);
      receive("\r\n");
    }
    return found;
  }

 private:
  void receive(const std::string& wanted) {
    char got[64];
    take(got, wanted.size());
    core::check(wanted == std::string_view(got, wanted.size()), "Redis said something else");
  }
  void take(char* to, size_t bytes) {
    while (end_ - begin_ < bytes) {
      std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
      end_ -= std::exchange(begin_, 0);
      const ssize_t now = ::recv(fd_, buffer_.data() + end_, buffer_.size() - end_, 0);
      core::check(now > 0, "Redis went away");
      end_ += static_cast<size_t>(now);
    }
    std::memcpy(to, buffer_.data() + begin_, bytes);
    begin_ += bytes;
  }

  int fd_;
  size_t row_bytes_;
  std::string request_;
  std::vector<char> buffer_ = std::vector<char>(256 << 10);
  size_t begin_ = 0, end_ = 0;
};

std::vector<uint64_t> random_keys(std::mt19937_64& random, uint64_t rows, uint64_t count) {
  std::set<uint64_t> taken;
  std::vector<uint64_t> keys;
  while (keys.size() < count)
    if (const uint64_t key = random() % rows; taken.insert(key).second) keys.push_back(key);
  return keys;
}

std::string rows_of(size_t count, size_t elems, float value) {
  const std::vector<float> values(count * elems, value);
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)};
}

void fill(Store& store, uint64_t rows, size_t elems) {
  constexpr uint64_t kAtOnce = 1 << 12;
  for (uint64_t begin = 0; begin < rows; begin += kAtOnce) {
    std::vector<uint64_t> keys;
    for (uint64_t key = begin; key < std::min(begin + kAtOnce, rows); ++key) keys.push_back(key);
    store.write(keys, rows_of(keys.size(), elems, 0), Store::Read::No);
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 5) return 2;
  const uint64_t rows = std::stoull(argv[2]), elems = std::stoull(argv[3]);
  const uint64_t count = std::stoull(argv[4]);
  try {
    Store store(argv[1], elems);
    if (argc > 5) fill(store, rows, elems);
    std::mt19937_64 random(1);
    float value = 0;
    std::cout << "ready" << std::endl;
    for (uint64_t steps = 0; std::cin >> steps;) {
      std::string times;
      for (uint64_t step = 0; step < steps; ++step) {
        const auto keys = random_keys(random, rows, count);
        const std::string pushed = rows_of(count, elems, ++value);
        const auto began = std::chrono::steady_clock::now();
        const std::string found = store.write(keys, pushed, Store::Read::Yes);
        const std::chrono::duration<double, std::micro> took =
            std::chrono::steady_clock::now() - began;
        core::check(found == pushed, "Redis has other rows");
        times += fmt::format("{}{:.1f}", step > 0 ? ", " : "", took.count());
      }
      std::cout << "{\"us\": [" << times << "]}" << std::endl;
    }
  } catch (const Error& error) {
    fmt::print(stderr, "redis_peer: {}\n", error.what());
    return 1;
  }
}
