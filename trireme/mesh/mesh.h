#pragma once

#include <c10/core/Device.h>

#include <initializer_list>
#include <map>
#include <string>
#include <vector>

#include "trireme/comm/communicator.h"
#include "trireme/layout/axis.h"
#include "trireme/layout/coord.h"
#include "trireme/layout/degrees.h"
#include "trireme/layout/reduction.h"

namespace trireme {

/// The ranks arranged as a box, and the group of this rank along every axis.
///
///   world of 8, {.pipe = 2, .shard = 2, .tensor = 2}; tensor varies fastest:
///
///              tensor 0  tensor 1                 tensor 0  tensor 1
///   shard 0        0         1          shard 0       4         5
///   shard 1        2         3          shard 1       6         7
///                 pipe 0                             pipe 1
class Mesh {
 public:
  /// Makes all possible groups. Collective over `world`. Throws, with the numbers, if the
  /// degrees do not multiply to its size. `device`: where this rank's tensors live.
  Mesh(comm::Communicator world, Degrees degrees,
       c10::Device device = c10::Device(c10::DeviceType::CPU));

  const comm::Communicator& world() const { return world_; }

  /// The ranks that differ from this one only along `axis`, in the order of their coordinates on
  /// it.
  const comm::Communicator& group(Axis axis) const;

  /// Several axes flattened into one group, in rank order. Sets of axes that differ only in axes of
  /// degree 1 share a group. A set with a single axis above 1 is a separate group from
  /// `group(axis)`, so that their operations do not queue behind each other.
  const comm::Communicator& group(const std::vector<Axis>& axes) const;
  const comm::Communicator& group(std::initializer_list<Axis> axes) const {
    return group(std::vector<Axis>(axes));
  }

  /// The ranks that share the samples of a batch.
  const comm::Communicator& samples() const { return group(sample_axes()); }
  /// The ranks that share the tokens of a batch: those of `samples`, and those that share each
  /// sequence with them.
  const comm::Communicator& tokens() const {
    return group({Axis::Replica, Axis::Shard, Axis::Context});
  }

  const Degrees& degrees() const { return degrees_; }
  const Coord& coord() const { return coord_; }
  int size(Axis axis) const { return degrees_.of(axis); }  ///< the number of ranks along `axis`
  int coord(Axis axis) const { return coord_.of(axis); }   ///< this rank's coordinate along `axis`
  c10::Device device() const { return device_; }

  /// The box and its groups as a table, for the log of rank 0.
  std::string to_string() const;

 private:
  comm::Communicator make_group(const std::vector<Axis>& axes, const std::string& name) const;
  std::vector<Axis> above_one(const std::vector<Axis>& axes) const;

  comm::Communicator world_;
  Degrees degrees_;
  Coord coord_;
  c10::Device device_;
  std::map<Axis, comm::Communicator> along_;                ///< one axis
  std::map<std::vector<Axis>, comm::Communicator> across_;  ///< sets of axes above 1
};

/// A mesh of this process alone: the reference that other meshes are compared with.
Mesh mesh_of_one(c10::Device device = c10::Device(c10::DeviceType::CPU));

}  // namespace trireme
