#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "trireme/comm/backend.h"

namespace trireme::test {

/// What Communicator is to tensors, for plain floats: numbers the operations of a group.
class PlainGroup {
 public:
  explicit PlainGroup(std::shared_ptr<comm::Backend> backend) : backend_(std::move(backend)) {}

  int rank() const { return backend_->rank(); }
  int size() const { return backend_->size(); }

  using Started = std::shared_ptr<comm::PendingOp>;
  Started all_reduce(float* data, int64_t count, core::Algorithm algorithm = core::Algorithm::Auto);
  Started broadcast(float* data, int64_t count, int root);
  Started all_gather(float* out, const float* in, int64_t count);
  Started send(const float* data, int64_t count, int to, int tag);
  Started recv(float* data, int64_t count, int from, int tag);
  void barrier();

  PlainGroup split(const std::string& name, int color, int key);
  std::shared_ptr<float> allocate(int64_t count);
  void abort(const std::string& why) { backend_->abort(why); }

 private:
  Started start(const comm::Op& op, core::OpKind kind, int64_t count, int root, int tag,
                core::Algorithm algorithm);

  std::shared_ptr<comm::Backend> backend_;
  uint64_t collectives_ = 0, transfers_ = 0;
};

void wait(const PlainGroup::Started& work);

/// One thread per rank of a local world; exceptions are failures of the test.
void run_local(int size, const std::function<void(PlainGroup world)>& body);

/// The same with sockets between the threads, and a monitor each.
void run_tcp(int size, const std::function<void(PlainGroup world)>& body);

}  // namespace trireme::test
