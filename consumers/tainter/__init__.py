"""Keeps pods of the native device plugin off nodes where pods hold GPUs of ours."""
