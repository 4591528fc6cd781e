#include "trireme/train/layer_times.h"

#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/autograd.h>

#include <algorithm>
#include <deque>
#include <mutex>

#include "trireme/nn/head.h"

namespace trireme::train {

namespace {

namespace ag = torch::autograd;

using MarkPtr = StreamClock::MarkPtr;

class EventClock final : public StreamClock {
 public:
  explicit EventClock(c10::Device device) : device_(device), base_(mark_event()) {
    base_->event.synchronize();
    base_time_ = core::Trace::Clock::now();
  }

  MarkPtr mark() override { return mark_event(); }

  bool has_reached(const Mark& mark) const override { return event_of(mark).query(); }

  Time time_of(const MarkPtr& mark) override {
    event_of(*mark).synchronize();
    const std::chrono::duration<double, std::milli> since(
        base_->event.elapsedTime(event_of(*mark)));
    const Time time = base_time_ + std::chrono::duration_cast<Time::duration>(since);
    // CUDA counts in float32, which is exact only near the base.
    if (since > std::chrono::seconds(1)) {
      base_ = std::static_pointer_cast<const EventMark>(mark);
      base_time_ = time;
    }
    return time;
  }

 private:
  struct EventMark final : Mark {
    explicit EventMark(c10::DeviceType type) : event(type, c10::EventFlag::BACKEND_DEFAULT) {}
    c10::Event event;
  };

  static const c10::Event& event_of(const Mark& mark) {
    return static_cast<const EventMark&>(mark).event;
  }

  std::shared_ptr<const EventMark> mark_event() const {
    auto mark = std::make_shared<EventMark>(device_.type());
    mark->event.record(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
    return mark;
  }

  c10::Device device_;
  std::shared_ptr<const EventMark> base_;
  Time base_time_;
};

/// One call of a layer.
struct LayerCall {
  std::string name;
  std::shared_ptr<LayerCall> around;  // the call that it is a part of
  MarkPtr backward_began;
};

/// The marks of one model. Forward and backward may run on different threads, one after the other.
class LayerTimes : public std::enable_shared_from_this<LayerTimes> {
 public:
  LayerTimes(const std::shared_ptr<core::Trace>& trace, std::unique_ptr<StreamClock> clock)
      : trace_(trace), clock_(std::move(clock)) {}

  nn::Flow around(const std::string& name, nn::Flow in, const nn::LayerImpl::Call& inner);
  void begin_backward(const std::shared_ptr<LayerCall>& call);
  void end_backward(const std::shared_ptr<LayerCall>& call);

  /// Adds the spans that the device has passed to the trace; with `waits`, all of them.
  enum class Which : uint8_t { Passed, All };
  void add_spans(Which which);

 private:
  struct Span {
    std::string name;
    MarkPtr begin, end;
  };
  struct BackwardEnd;

  std::weak_ptr<core::Trace> trace_;
  std::unique_ptr<StreamClock> clock_;
  std::mutex mutex_;  // of all below
  std::shared_ptr<LayerCall> current_;
  std::deque<Span> spans_;  // in the order in which they end
};

/// An identity in forward, whose backward runs when the gradients of the inputs are there.
struct LayerTimes::BackwardEnd : ag::Function<BackwardEnd> {
  struct Box : torch::CustomClassHolder {
    std::shared_ptr<LayerTimes> times;
    std::shared_ptr<LayerCall> call;
  };
  static ag::variable_list forward(ag::AutogradContext* context, c10::intrusive_ptr<Box> box,
                                   at::TensorList inputs) {
    context->saved_data["box"] = c10::IValue::make_capsule(box);
    ag::variable_list out;
    for (const at::Tensor& one : inputs) out.push_back(one.defined() ? one.view_as(one) : one);
    return out;
  }
  static ag::variable_list backward(ag::AutogradContext* context, ag::variable_list gradients) {
    const auto box =
        c10::static_intrusive_pointer_cast<Box>(context->saved_data["box"].toCapsule());
    box->times->end_backward(box->call);
    gradients.insert(gradients.begin(), at::Tensor());  // of the box
    return gradients;
  }
};

bool needs_gradient(const at::Tensor& one) {
  return one.defined() && one.requires_grad();
}

nn::Flow LayerTimes::around(const std::string& name, nn::Flow in,
                            const nn::LayerImpl::Call& inner) {
  const auto call = std::make_shared<LayerCall>();
  call->name = name;
  {
    const std::lock_guard lock(mutex_);
    call->around = current_;
  }
  if (call->around == nullptr) add_spans(Which::Passed);
  if (at::GradMode::is_enabled() &&
      std::any_of(in.tensors.begin(), in.tensors.end(), needs_gradient)) {
    auto box = c10::make_intrusive<BackwardEnd::Box>();
    box->times = shared_from_this();
    box->call = call;
    in.tensors = BackwardEnd::apply(box, at::TensorList(in.tensors));
  }
  struct Inside {  // of this call, also while it throws
    LayerTimes& times;
    std::shared_ptr<LayerCall> before;
    void enter(std::shared_ptr<LayerCall> now) const {
      const std::lock_guard lock(times.mutex_);
      times.current_ = std::move(now);
    }
    ~Inside() { enter(before); }
  };
  const MarkPtr begin = clock_->mark();
  nn::Flow out = [&] {
    const Inside inside{*this, call->around};
    inside.enter(call);
    return inner(std::move(in));
  }();
  {
    MarkPtr end = clock_->mark();
    const std::lock_guard lock(mutex_);
    spans_.push_back({name, begin, std::move(end)});
  }
  for (const at::Tensor& one : out.tensors)
    if (needs_gradient(one))
      one.register_hook([times = weak_from_this(), call](const at::Tensor&) {
        if (const auto own = times.lock()) own->begin_backward(call);
      });
  return out;
}

// The output of a block is that of its last layer, whose hook runs first: so the call around it
// begins with it.
void LayerTimes::begin_backward(const std::shared_ptr<LayerCall>& call) {
  const std::lock_guard lock(mutex_);
  if (call->backward_began != nullptr) return;
  const MarkPtr mark = clock_->mark();
  for (LayerCall* one = call.get(); one != nullptr && one->backward_began == nullptr;
       one = one->around.get())
    one->backward_began = mark;
}

void LayerTimes::end_backward(const std::shared_ptr<LayerCall>& call) {
  const std::lock_guard lock(mutex_);
  if (call->backward_began == nullptr) return;
  spans_.push_back(
      {call->name + " backward", std::exchange(call->backward_began, nullptr), clock_->mark()});
}

void LayerTimes::add_spans(Which which) {
  const auto trace = trace_.lock();
  const std::lock_guard lock(mutex_);
  while (!spans_.empty() && (which == Which::All || clock_->has_reached(*spans_.front().end))) {
    const Span span = std::move(spans_.front());
    spans_.pop_front();
    if (trace == nullptr) continue;
    const auto begin = clock_->time_of(span.begin);
    trace->add(core::Trace::Row::Gpu, span.name, begin, clock_->time_of(span.end));
  }
}

}  // namespace

std::unique_ptr<StreamClock> make_stream_clock(c10::Device device) {
  return std::make_unique<EventClock>(device);
}

void trace_layers(nn::ModelImpl& model, const std::shared_ptr<core::Trace>& trace,
                  std::unique_ptr<StreamClock> clock) {
  const auto times = std::make_shared<LayerTimes>(trace, std::move(clock));
  for (const auto& module : model.modules(/*include_self=*/false)) {
    auto* layer = dynamic_cast<nn::LayerImpl*>(module.get());
    if (layer == nullptr) continue;
    // The loss of a Head is no `forward`: only the inner hooks run around it.
    const bool is_head = dynamic_cast<nn::HeadImpl*>(layer) != nullptr;
    layer->around(
        is_head ? nn::Seam::Time : nn::Seam::Profile,
        [times, name = layer->full_name()](nn::Flow in, const nn::LayerImpl::Call& inner) {
          return times->around(name, std::move(in), inner);
        });
  }
  trace->before_take([own = std::weak_ptr(times)] {
    if (const auto all = own.lock()) all->add_spans(LayerTimes::Which::All);
  });
}

}  // namespace trireme::train
