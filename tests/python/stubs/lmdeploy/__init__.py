"""Stands for LMDeploy: the functions that family `lmdeploy` calls, with the signatures of LMDeploy 0.16."""
