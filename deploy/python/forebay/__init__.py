# SPDX-License-Identifier: Apache-2.0
"""An S3 read cache on local disks for training jobs. The wheel holds the program `forebay`."""
