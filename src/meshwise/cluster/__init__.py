"""Clusters: hosts that may differ, their links, and the logical meshes that they can be seen as.

Others use `spec.ClusterSpec` (made from a name, a file or a profile), `mesh.LogicalMesh` and its
`DeviceSpec`, `submesh.Submesh`, `collectives` (seconds of each kind), `cpu.cpu_cluster` (virtual
devices), `catalog` (real machines) and `description.profile` (what `meshwise calibrate` measured).
"""
