#pragma once

#include <vector>

#include "trireme/comm/communicator.h"
#include "trireme/parallel/kept.h"

namespace trireme::parallel {

/// Parameters that several ranks of a pipeline hold under one name, as the embedding and the head
/// of a language model do. Each has the gradient of its own use; their sum is everybody's, so that
/// all of them are updated alike.
class TiedParameters {
 public:
  /// Finds them by name. Those that an earlier rank of the pipe holds count and are saved there:
  /// here their pieces are no longer `first`. Collective over the pipe.
  TiedParameters(std::vector<Kept>& kept, const comm::Communicator& pipe);

  /// Adds up what the holders have in .grad. Collective.
  void sum_gradients() const;

  /// Throws CommError if the holders' values differ. Collective.
  void check_same() const;

  bool empty() const { return groups_.empty(); }

 private:
  struct Group {
    comm::Communicator holders;
    std::vector<std::string> names;
    std::vector<at::Tensor> tensors;
  };
  std::vector<Group> groups_;
};

}  // namespace trireme::parallel
