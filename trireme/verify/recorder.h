#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "trireme/train/trainer.h"
#include "trireme/verify/note.h"

namespace trireme::verify {

/// Looks on while a trainer trains, and notes what it sees: what went in, the weights in use, the
/// output at every seam, the loss, the gradients and their norm.
class Recorder {
 public:
  /// Attaches to every layer of the model; what stays there when this is gone does nothing.
  Recorder(train::Trainer& trainer, const Mesh& mesh);
  ~Recorder() { *self_ = nullptr; }
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;

  /// Before a step; notes the weights and buffers that it starts from. Collective. `first_row`: of
  /// this rank's rows in the batch; `micros`: how many it is cut in.
  void begin(const data::Batch& batch, int64_t first_row, int64_t micros);
  /// In it, when the gradients are there, as sums: to be divided by `weight`. Collective.
  void note_gradients(double weight);
  /// After it: its notes, in the order of computation.
  std::vector<Note> end(const train::StepResult& result);

  /// The weights, trained or not, and the buffers, as they are now. Collective.
  std::vector<Note> state() const;

  /// Layers whose outputs cannot be compared: they declare no layout, are not called as often in
  /// every micro-batch, or give something else than tensors with a row per sample. (Of several
  /// tensors those after the first are compared where nothing cuts them.)
  const std::set<std::string>& skipped() const { return skipped_; }

 private:
  nn::Flow look(const nn::LayerImpl& layer, nn::Flow in, const nn::LayerImpl::Call& inner);
  std::vector<Note> weights() const;
  std::vector<Note> buffers() const;
  void note_output(const nn::LayerImpl& layer, const nn::Flow& out);
  void note_tensor(const std::string& name, std::vector<Cut> cuts, const nn::Flow& out,
                   const at::Tensor& tensor);

  train::Trainer& trainer_;
  const Mesh& mesh_;
  bool recording_ = false, looked_ = false;
  int64_t first_row_ = 0, rows_ = 0, micros_ = 1;
  std::vector<Note> inputs_, weights_, buffers_, gradients_;
  struct Calls {
    std::vector<Cut> cuts;
    std::vector<std::pair<int64_t, at::Tensor>> outputs;  // with the micro-batch of each
  };
  std::map<std::string, Calls> calls_;
  std::vector<std::string> order_;  // of the layers, by their first output
  std::set<std::string> skipped_;
  std::shared_ptr<Recorder*> self_ = std::make_shared<Recorder*>(this);
};

}  // namespace trireme::verify
