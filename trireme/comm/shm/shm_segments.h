#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "trireme/comm/segment_server.h"
#include "trireme/comm/segments.h"
#include "trireme/net/secret.h"

namespace trireme::comm {

/// Segments between processes: anonymous memory (memfd) that the first of the ranks makes and
/// passes to the others over a unix socket. It has no name, so it leaves nothing behind.
class ShmSegments final : public Segments {
 public:
  /// `sockets`: the unix socket of every rank; the server listens on this rank's own.
  ShmSegments(std::unique_ptr<SegmentServer> server, net::Secret secret, net::Identity me,
              std::vector<std::string> sockets);

  Location locate(const void* data, int64_t bytes, const std::vector<int>& ranks) const override;
  std::byte* at(Location location) const override;
  Mapping make(uint64_t id, std::size_t bytes, const std::vector<int>& ranks) override;
  void add(uint64_t id, const Mapping& mapping, const std::vector<int>& ranks) override;
  void remove(uint64_t id) override;

  /// The same with a deadline, for the first segment of a world.
  Mapping make_by(uint64_t id, std::size_t bytes, const std::vector<int>& ranks,
                  net::Deadline deadline);

 private:
  net::Fd fetch_from(int owner, uint64_t id, net::Deadline deadline) const;
  struct SharedSegment {
    uint64_t id = 0;
    Mapping mapping;
    std::vector<int> ranks;
  };

  std::unique_ptr<SegmentServer> server_;
  net::Secret secret_;
  net::Identity me_;
  std::vector<std::string> sockets_;
  std::map<const std::byte*, SharedSegment> by_address_;
  std::map<uint64_t, std::byte*> by_id_;
};

}  // namespace trireme::comm
